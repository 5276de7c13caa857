package host

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// An engine that loads its model is on the GPU before it listens: who beside it is a stranger shows later, though the
// processes are the same.
func TestAStrangerShowsOnceTheEngineListens(t *testing.T) {
	var engines []int
	looks := 0
	s := &Strangers{engines: func(context.Context) []int { looks++; return engines }, looked: map[int]look{}}
	around := map[int]timeline.Inventory{1: {ProcessesKnown: true, Processes: []timeline.GPUProcess{{PID: 7}, {PID: 9}}}}
	now, said := timeline.Instant(time.Hour), []string(nil)
	at := func(after time.Duration) {
		now = now.Add(after)
		for _, c := range s.Look(t.Context(), now, around) {
			said = append(said, c.State.String())
		}
	}
	at(0)
	for range 5 {
		at(10 * time.Second)
	}
	engines = []int{7, 8}
	at(10 * time.Second)
	for range 20 {
		at(10 * time.Second)
	}
	around[1] = timeline.Inventory{ProcessesKnown: true, Processes: []timeline.GPUProcess{{PID: 7}}}
	at(10 * time.Second)
	if diff := cmp.Diff([]string{timeline.StateUntrusted.String(), timeline.StateOK.String()}, said); diff != "" {
		t.Errorf("said (-want +have):\n%s", diff)
	}
	if looks != 3 {
		t.Errorf("%d looks at all processes, want one while it is open, one that tells, and one when who computes changed", looks)
	}
}

func TestWhoComputesIsWhoNotHowMuch(t *testing.T) {
	of := func(known bool, p ...timeline.GPUProcess) string {
		return computing(timeline.Inventory{ProcessesKnown: known, Processes: p})
	}
	one := of(true, timeline.GPUProcess{PID: 7, MemoryBytes: 1}, timeline.GPUProcess{PID: 9})
	if other := of(true, timeline.GPUProcess{PID: 9}, timeline.GPUProcess{PID: 7, MemoryBytes: 2}); other != one {
		t.Errorf("%q and %q: the same processes in another order, with other memory", one, other)
	}
	for name, other := range map[string]string{"one gone": of(true, timeline.GPUProcess{PID: 7}), "none known": of(false)} {
		if other == one {
			t.Errorf("%s: still %q", name, other)
		}
	}
	ports, ok := localPorts([]string{"http://127.0.0.1:9/b", "http://localhost:8", "http://127.0.0.1:9/a"})
	if !ok || !slices.Equal(ports, []int{8, 9}) {
		t.Errorf("ports %v, %v: want each once", ports, ok)
	}
}

func TestOnlyAStrangerBesideAnEngineIsForeign(t *testing.T) {
	some := func(pids ...int) timeline.Inventory {
		v := timeline.Inventory{ProcessesKnown: true}
		for _, p := range pids {
			v.Processes = append(v.Processes, timeline.GPUProcess{PID: p})
		}
		return v
	}
	for name, tt := range map[string]struct {
		on   timeline.Inventory
		want timeline.State
	}{
		"the engine alone":                       {some(11, 12), timeline.StateOK},
		"the engine and another":                 {some(11, 99), timeline.StateUntrusted},
		"another alone, maybe by another number": {some(99), timeline.StateUnknown},
		"nobody":                                 {some(), timeline.StateUnknown},
		"a driver that does not tell":            {timeline.Inventory{}, timeline.StateUnknown},
	} {
		if got := foreign(2, tt.on, []int{10, 11, 12}); got.State != tt.want || got.GPU != 2 || got.Call != timeline.ForeignProcess {
			t.Errorf("%s: %+v, want %v", name, got, tt.want)
		}
	}
}

func TestLocalPorts(t *testing.T) {
	for _, tt := range []struct {
		url string
		ok  bool
	}{
		{"http://127.0.0.1:8000", true},
		{"http://localhost:8000", true},
		{"http://[::1]:8000", true},
		{"http://10.0.0.1:8000", false},
		{"http://engine:8000", false},
		{"http://127.0.0.1", false},
	} {
		if ports, ok := localPorts([]string{tt.url}); ok != tt.ok || ok && ports[0] != 8000 {
			t.Errorf("%s: %v, %v", tt.url, ports, ok)
		}
	}
	if _, ok := localPorts(nil); ok {
		t.Error("no engine is local")
	}
}
