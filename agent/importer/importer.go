// Package importer turns what other tools and scenarios know into recordings, so that everything that reads a
// recording reads them too. An importer is one file. It declares the clock its times belong to, and leaves out what it
// cannot know: absent is not zero.
package importer
