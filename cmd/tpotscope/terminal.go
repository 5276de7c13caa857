package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// defaultWidth is assumed where output is no terminal.
const defaultWidth = 100

// terminal returns the width of standard output, and whether it is a terminal.
func (a *app) terminal() (int, bool) { return terminalOf(a.out) }

// terminalOf returns the width of a stream, and whether it is a terminal.
func terminalOf(stream any) (int, bool) {
	f, ok := stream.(*os.File)
	if !ok {
		return defaultWidth, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return defaultWidth, false
	}
	return int(size.Col), true
}

// escapes reports whether a stream is a terminal that understands escapes.
func (a *app) escapes(stream any) bool {
	_, terminal := terminalOf(stream)
	return terminal && a.env.get("TERM") != "dumb"
}

// say prints to standard error, for people. That nobody may be there to read it is no error.
func (a *app) say(format string, args ...any) { _, _ = fmt.Fprintf(a.err, format, args...) }

// progress is a line on a terminal that says how far long work is. Elsewhere it says nothing.
type progress struct {
	w     io.Writer
	what  string
	last  time.Time
	begun time.Time
	shown bool
}

// progressAfter is how long work takes before it is worth a line.
const progressAfter = 500 * time.Millisecond

func (a *app) progress(what string) *progress {
	p := &progress{what: what, begun: time.Now()}
	if a.escapes(a.err) {
		p.w = a.err
	}
	return p
}

// at says that the fraction done is done.
func (p *progress) at(done float64) {
	now := time.Now()
	if p.w == nil || now.Sub(p.begun) < progressAfter || now.Sub(p.last) < 100*time.Millisecond {
		return
	}
	p.last, p.shown = now, true
	left := ""
	if done > 0.02 {
		rest := time.Duration(float64(now.Sub(p.begun)) * (1 - done) / done)
		left = ", " + rest.Round(time.Second).String() + " left"
	}
	_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s: %.0f %%%s", p.what, 100*min(done, 1), left)
}

// done clears the line.
func (p *progress) done() {
	if p.shown {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// printSettings prints every value and where it came from, in the form of a file.
func printSettings(w io.Writer, all []*setting) error {
	var b strings.Builder
	section := ""
	for _, s := range all {
		path := strings.Split(s.key, ".")
		for i := range len(path) - 1 {
			if prefix := strings.Join(path[:i+1], ".") + "."; !strings.HasPrefix(section, prefix) {
				fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", i), path[i])
				section = prefix
			}
		}
		if len(path) == 1 {
			section = ""
		}
		line := strings.Repeat("  ", len(path)-1) + path[len(path)-1] + ": " + s.text()
		fmt.Fprintf(&b, "%-52s # %s\n", line, s.origin)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
