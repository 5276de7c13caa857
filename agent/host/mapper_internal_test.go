package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// mapperScene is a host on which engines come and go.
type mapperScene struct {
	m      *Mapper
	ports  map[int]Endpoint
	around map[int]timeline.Inventory
	gpus   int
	looks  int
	now    timeline.Instant
}

func newMapperScene(gpus int, urls ...string) *mapperScene {
	s := &mapperScene{m: NewMapper(urls), ports: map[int]Endpoint{}, around: map[int]timeline.Inventory{}, gpus: gpus, now: timeline.Instant(time.Hour)}
	s.m.there = func(pid int) bool { return pid < 1000 }
	s.m.listen = func(_ context.Context, port int) (Endpoint, error) {
		s.looks++
		if e, ok := s.ports[port]; ok {
			return e, nil
		}
		return Endpoint{}, fmt.Errorf("find listener of port %d: %w", port, ErrNoListener)
	}
	return s
}

// on makes these processes all that compute on a GPU.
func (s *mapperScene) on(gpu int, pids ...int) {
	v := timeline.Inventory{GPU: gpu, ProcessesKnown: true}
	for _, pid := range pids {
		v.Processes = append(v.Processes, timeline.GPUProcess{PID: pid})
	}
	s.around[gpu] = v
}

// after looks every second for so long, and returns what is known then.
func (s *mapperScene) after(t *testing.T, d time.Duration) []Mapping {
	t.Helper()
	var all []Mapping
	for range int(d / time.Second) {
		s.now = s.now.Add(time.Second)
		all = s.m.Look(t.Context(), s.now, s.gpus, s.around)
	}
	return all
}

func TestEnginesAreTiedToTheGPUsOnWhichTheirTreesCompute(t *testing.T) {
	s := newMapperScene(4, "http://127.0.0.1:8000", "http://localhost:8001/", "http://10.0.0.5:8002")
	s.ports[8000] = Endpoint{Listeners: []int{10}, Tree: []int{10, 11, 12}}
	s.ports[8001] = Endpoint{Listeners: []int{20}, Tree: []int{20}}
	s.on(0, 11)
	if all := s.after(t, 3*time.Second); len(all[0].GPUs) > 0 || s.looks > 0 {
		t.Fatalf("judged by one GPU of four: %+v", all)
	}
	s.on(1, 20)
	s.on(2, 12, 20, 99)
	s.on(3)
	all := s.after(t, time.Second)
	for i, want := range []Mapping{
		{GPUs: []int{0, 2}, How: "process 10 listens on port 8000, and 2 processes of its tree compute there"},
		{GPUs: []int{1, 2}, How: "process 20 listens on port 8001 and computes there"},
		{How: "the engine is at 10.0.0.5, and only processes behind a loopback address are looked at", Lasts: true},
	} {
		if got := all[i]; !slices.Equal(got.GPUs, want.GPUs) || got.How != want.How || got.Lasts != want.Lasts {
			t.Errorf("engine %d: %+v, want %+v", i, got, want)
		}
	}
	if s.after(t, time.Hour); s.looks != 2 {
		t.Errorf("%d looks at all processes though nothing changed, want one for each engine here", s.looks)
	}
}

func TestATieLastsUntilAnotherIsFound(t *testing.T) {
	s := newMapperScene(2, "http://127.0.0.1:8000")
	s.ports[8000] = Endpoint{Listeners: []int{10}, Tree: []int{10, 11, 12}}
	s.on(0, 11)
	s.on(1, 12)
	tied := func(after time.Duration, want ...int) {
		t.Helper()
		if got := s.after(t, after)[0]; !slices.Equal(got.GPUs, want) {
			t.Fatalf("tied to %v (%s), want %v", got.GPUs, got.How, want)
		}
	}
	tied(time.Second, 0, 1)
	s.on(1)
	tied(20*time.Second, 0, 1) // its workers end one by one
	s.on(0)
	delete(s.ports, 8000)
	tied(20*time.Second, 0, 1)
	s.on(1, 31) // the next engine loads its model before it listens
	tied(30*time.Second, 0, 1)
	s.ports[8000] = Endpoint{Listeners: []int{30}, Tree: []int{30, 31}}
	tied(11*time.Second, 1)
	s.on(0, 99)
	tied(time.Minute, 1)
}

func TestAnEngineThatIsNotFoundIsLookedForLessAndLess(t *testing.T) {
	s := newMapperScene(2, "http://127.0.0.1:8000")
	s.on(0, 7)
	s.on(1)
	if got := s.after(t, 5*time.Second)[0]; got.Lasts {
		t.Errorf("no engine yet is said to last: %+v", got)
	}
	if got := s.after(t, time.Minute)[0]; !got.Lasts || !strings.Contains(got.How, "nothing listens on port 8000") {
		t.Errorf("after a minute: %+v", got)
	}
	s.after(t, 9*time.Minute)
	if s.looks < 12 || s.looks > 17 {
		t.Errorf("%d looks in ten minutes, want one each 10 s for a minute, and then one a minute", s.looks)
	}
}

func TestWhyAnEngineIsNotFoundIsSaid(t *testing.T) {
	up := Endpoint{Listeners: []int{10}, Tree: []int{10}}
	for want, tt := range map[string]struct {
		url    string
		behind Endpoint
		err    error
		pids   []int
		untold bool
	}{
		"the driver does not tell which processes": {behind: up, untold: true},
		"no process computes on any GPU":           {behind: up},
		"needs the host's process namespace":       {behind: up, pids: []int{40000, 40001}},
		"neither it nor one below it computes":     {behind: up, pids: []int{77}},
		"is hidden":                                {err: ErrHiddenListener},
		"nothing listens on port 8000":             {err: ErrNoListener},
		"list sockets: no":                         {err: errors.New("list sockets: no")},
		"names no port":                            {url: "http://127.0.0.1/"},
		"the engine is at engine.example":          {url: "http://engine.example:8000"},
		"the engine's URL cannot be read":          {url: "http://%zz"},
	} {
		if tt.url == "" {
			tt.url = "http://[::1]:8000"
		}
		s := newMapperScene(1, tt.url)
		s.m.listen = func(context.Context, int) (Endpoint, error) { return tt.behind, tt.err }
		s.on(0, tt.pids...)
		if tt.untold {
			s.around[0] = timeline.Inventory{}
		}
		if got := s.after(t, time.Second)[0]; len(got.GPUs) > 0 || !strings.Contains(got.How, want) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
}

func TestWhatIsNeverToldOfAGPUHoldsUpNoOther(t *testing.T) {
	s := newMapperScene(2, "http://127.0.0.1:8000")
	s.ports[8000] = Endpoint{Listeners: []int{10}, Tree: []int{10}}
	s.on(0, 10)
	if got := s.after(t, 20*time.Second)[0]; !slices.Equal(got.GPUs, []int{0}) {
		t.Errorf("%+v, want GPU 0", got)
	}
}
