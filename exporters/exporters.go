// Package exporters is the one place where the name of a series is spelt: the catalogue of everything tpotscope sends
// out, the batch in which results travel, and the sink that each way out implements. It knows no device and no agent.
package exporters

import (
	"context"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Batch is a piece of the result stream, in the order of time. A sink may keep the slices; nobody changes them.
type Batch struct {
	Anchor timeline.Anchor // converts instants of this batch to wall-clock time
	GPUs   []timeline.GPU  // what positions in cells refer to
	Cells  []correlate.Cell
	Phases []correlate.Phase
	Events []timeline.Event
	Self   []Self // readings of the agent itself, newest
	Unread []int  // positions of GPUs of which nothing can be read at the moment: they have no series

	// Capabilities are the states of all calls of all GPUs, as they are; nil: as they were.
	Capabilities []timeline.Capability
}

// Self is one reading of the agent itself. Labels are pairs in the order of the catalogue's label names.
type Self struct {
	Name   string // of the catalogue
	Labels []string
	Value  float64
}

// Sink is a way out. Consume must not block on the network: what it cannot hold it drops and counts.
type Sink interface {
	Consume(ctx context.Context, b *Batch) error
}
