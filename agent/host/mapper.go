package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Mapping is which GPUs an engine uses, as far as its processes show.
type Mapping struct {
	GPUs  []int  // by position, in order; none: not known
	How   string // they were found; where none were, why
	Lasts bool   // that none were found is no matter of waiting a little
}

// Mapper ties engines to the GPUs on which they compute: by the process that listens on an engine's port, all processes
// below it, and what the driver tells of who computes where. What it found once it keeps until it finds another, as over
// a restart of the engine. It is used by one goroutine.
type Mapper struct {
	listen func(context.Context, int) (Endpoint, error) // who listens on a port
	there  func(int) bool                               // a process is one that can be seen

	engines []mapped
	who     string           // computed where, at the last look
	first   timeline.Instant // when anything was told of who computes
	at      timeline.Instant // of the last look
	looks   int              // since who computes changed
}

// mapped is what is known of one engine.
type mapped struct {
	Mapping

	port      int   // zero: it is not on this host
	listeners []int // when it was found
	open      bool  // the last look did not find it
}

// NewMapper returns one for engines of these URLs. An engine that is not on this host is none that can be found.
func NewMapper(urls []string) *Mapper {
	proc := DefaultConfig().Proc
	m := &Mapper{
		listen: func(ctx context.Context, port int) (Endpoint, error) { return Listener(ctx, proc, port) },
		there: func(pid int) bool {
			_, err := os.Stat(filepath.Join(proc, strconv.Itoa(pid)))
			return err == nil
		},
	}
	for _, text := range urls {
		e := mapped{open: true, Mapping: Mapping{How: "who computes on the GPUs is not told yet"}}
		var err error
		if e.port, err = localPort(text); err != nil {
			e.Mapping, e.open = Mapping{How: err.Error(), Lasts: true}, false
		}
		m.engines = append(m.engines, e)
	}
	return m
}

const (
	lookSoon  = 10 * time.Second // between two looks for an engine that was not found: it may be starting
	soonLooks = 6                // after which it is looked for each [lookAgain]
	patience  = 3                // looks after which that it was not found is no matter of waiting
	allTold   = 15 * time.Second // after which it is not waited for what the driver tells of more GPUs
)

// Look returns what is known of each engine, in the order of their URLs, by who computes on each of so many GPUs. It
// looks at every process of the host only where who computes has changed, or while an engine is not found.
func (m *Mapper) Look(ctx context.Context, now timeline.Instant, gpus int, around map[int]timeline.Inventory) []Mapping {
	if m.due(now, gpus, around) {
		for i := range m.engines {
			if e := &m.engines[i]; e.port != 0 && ctx.Err() == nil {
				m.find(ctx, e, around)
			}
		}
	}
	all := make([]Mapping, len(m.engines))
	for i := range m.engines {
		all[i] = m.engines[i].Mapping
	}
	return all
}

// due reports whether it is time to look.
func (m *Mapper) due(now timeline.Instant, gpus int, around map[int]timeline.Inventory) bool {
	if len(around) == 0 {
		return false
	}
	if m.first.IsZero() {
		m.first = now
	}
	if len(around) < gpus && now.Sub(m.first) < allTold {
		return false
	}
	who := whoComputes(around)
	if who != m.who {
		m.who, m.looks = who, 0
	} else {
		pause := lookSoon
		if m.looks >= soonLooks {
			pause = lookAgain
		}
		open := slices.ContainsFunc(m.engines, func(e mapped) bool { return e.open })
		if !open || now.Sub(m.at) < pause {
			return false
		}
	}
	m.at = now
	m.looks++
	return true
}

// whoComputes says which processes compute where.
func whoComputes(around map[int]timeline.Inventory) string {
	var b strings.Builder
	for _, gpu := range slices.Sorted(maps.Keys(around)) {
		fmt.Fprint(&b, gpu, computing(around[gpu]))
	}
	return b.String()
}

// find looks for one engine.
func (m *Mapper) find(ctx context.Context, e *mapped, around map[int]timeline.Inventory) {
	behind, err := m.listen(ctx, e.port)
	found := Mapping{}
	if err == nil {
		found = m.match(e.port, &behind, around)
	} else {
		found.How = whyHidden(e.port, err)
	}
	e.open = len(found.GPUs) == 0
	switch {
	case e.open && len(e.GPUs) > 0: // it may be starting again
	case e.open:
		found.Lasts = m.looks >= patience
		e.Mapping = found
	case slices.Equal(e.listeners, behind.Listeners) && !slices.ContainsFunc(found.GPUs, func(g int) bool { return !slices.Contains(e.GPUs, g) }):
		// An engine that lives gives no GPU up: one that ends leaves them one by one.
	default:
		e.Mapping, e.listeners = found, behind.Listeners
	}
}

// match ties the processes behind a port to the GPUs on which one of them computes.
func (m *Mapper) match(port int, behind *Endpoint, around map[int]timeline.Inventory) Mapping {
	var gpus, own, others []int
	told := false
	for _, gpu := range slices.Sorted(maps.Keys(around)) {
		v := around[gpu]
		told = told || v.ProcessesKnown
		for _, p := range v.Processes {
			if !slices.Contains(behind.Tree, p.PID) {
				others = append(others, p.PID)
				continue
			}
			if gpus = append(gpus, gpu); !slices.Contains(own, p.PID) {
				own = append(own, p.PID)
			}
		}
	}
	slices.Sort(own)
	listener := fmt.Sprintf("process %d listens on port %d", behind.Listeners[0], port)
	switch {
	case len(gpus) > 0:
		return Mapping{GPUs: slices.Compact(gpus), How: listener + compute(own, behind.Listeners[0])}
	case !told:
		return Mapping{How: "the driver does not tell which processes compute on the GPUs"}
	case len(others) == 0:
		return Mapping{How: "no process computes on any GPU"}
	case !slices.ContainsFunc(others, m.there):
		return Mapping{How: "no process that computes on a GPU can be seen from here: the agent needs the host's process namespace"}
	}
	return Mapping{How: listener + ", and neither it nor one below it computes on a GPU: it passes on to an engine elsewhere, or has not begun"}
}

// compute says which of the processes behind a port compute.
func compute(own []int, listener int) string {
	switch {
	case len(own) > 1:
		return fmt.Sprintf(", and %d processes of its tree compute there", len(own))
	case own[0] == listener:
		return " and computes there"
	}
	return fmt.Sprintf(", and process %d of its tree computes there", own[0])
}

// whyHidden says in plain words why the processes behind a port are not known.
func whyHidden(port int, err error) string {
	switch {
	case errors.Is(err, ErrNoListener):
		return fmt.Sprintf("nothing listens on port %d here: the engine is not up, or in a container with a network of its own", port)
	case errors.Is(err, ErrHiddenListener):
		return fmt.Sprintf("the process that listens on port %d is hidden: it is another user's, or in another process namespace", port)
	}
	return err.Error()
}

// localPort returns the port of an engine on this host.
func localPort(text string) (int, error) {
	u, err := url.Parse(text)
	if err != nil {
		return 0, errors.New("the engine's URL cannot be read")
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return 0, fmt.Errorf("the engine is at %s, and only processes behind a loopback address are looked at", u.Hostname())
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil || port == 0 {
		return 0, errors.New("the engine's URL names no port")
	}
	return port, nil
}
