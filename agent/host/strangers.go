package host

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Strangers tells of each GPU whether a process computes on it that is not an engine's. Who cannot be known is not
// accused: engines elsewhere, in another process namespace, or hidden from this user leave it open. It is used by one
// goroutine.
type Strangers struct {
	engines func(context.Context) []int // the processes of all engines; none if those of one are not known
	looked  map[int]look                // by GPU
}

// look is what came of a look at a GPU.
type look struct {
	who string // computed on it
	at  timeline.Instant
	was timeline.Capability
}

// lookAgain is how long it is left open who computes on a GPU before it is looked at again, though they are the same: an
// engine that loads its model computes before it listens.
const lookAgain = time.Minute

// NewStrangers returns one for engines of these URLs, or false unless all of them are on this host.
func NewStrangers(urls []string) (*Strangers, bool) {
	ports, ok := localPorts(urls)
	if !ok {
		return nil, false
	}
	return &Strangers{
		engines: func(ctx context.Context) []int { return processTree(ctx, ports) }, looked: map[int]look{},
	}, true
}

// Look judges the GPUs, by what is on and around them, and returns what is not as it was. It looks at every process of
// the host where who computes has changed.
func (s *Strangers) Look(ctx context.Context, now timeline.Instant, around map[int]timeline.Inventory) []timeline.Capability {
	engines := sync.OnceValue(func() []int { return s.engines(ctx) })
	var changed []timeline.Capability
	for _, gpu := range slices.Sorted(maps.Keys(around)) {
		v := around[gpu]
		before, told := s.looked[gpu]
		if !told {
			before.was = timeline.Capability{GPU: gpu, Call: timeline.ForeignProcess}
		}
		who := computing(v)
		open := before.was.State == timeline.StateUnknown && v.ProcessesKnown && len(v.Processes) > 0
		if again := open && now.Sub(before.at) >= lookAgain; who == before.who && !again {
			continue
		}
		c := foreign(gpu, v, engines())
		if c != before.was {
			changed = append(changed, c)
		}
		s.looked[gpu] = look{who, now, c}
	}
	return changed
}

// computing says which processes compute on a GPU, whatever memory they take.
func computing(v timeline.Inventory) string {
	pids := make([]int, len(v.Processes))
	for i, p := range v.Processes {
		pids[i] = p.PID
	}
	slices.Sort(pids)
	return fmt.Sprint(v.ProcessesKnown, pids)
}

// localPorts returns the ports of the engines, each once, if all of them are on this host.
func localPorts(urls []string) ([]int, bool) {
	var ports []int
	for _, text := range urls {
		port, err := localPort(text)
		if err != nil {
			return nil, false
		}
		ports = append(ports, port)
	}
	slices.Sort(ports)
	return slices.Compact(ports), len(ports) > 0
}

// processTree returns the processes behind the ports, or nothing if those of one are not known.
func processTree(ctx context.Context, ports []int) []int {
	var tree []int
	for _, port := range ports {
		e, err := Listener(ctx, DefaultConfig().Proc, port)
		if err != nil {
			return nil
		}
		tree = append(tree, e.Tree...)
	}
	return tree
}

// foreign judges the processes on a GPU by those of the engines. Only beside one of theirs is another a stranger:
// without any, the two lists may number processes differently.
func foreign(gpu int, v timeline.Inventory, engines []int) timeline.Capability {
	c := timeline.Capability{GPU: gpu, Call: timeline.ForeignProcess, State: timeline.StateUnknown}
	own, strangers := 0, 0
	for _, p := range v.Processes {
		if slices.Contains(engines, p.PID) {
			own++
		} else {
			strangers++
		}
	}
	switch {
	case !v.ProcessesKnown || own == 0:
	case strangers == 0:
		c.State = timeline.StateOK
	default:
		c.State = timeline.StateUntrusted
		c.Detail = fmt.Sprintf("%d of the %d processes that compute on it are not the engine's", strangers, own+strangers)
	}
	return c
}
