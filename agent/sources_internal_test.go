package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

func TestTheHelpersLossIsSaidOnceAMinute(t *testing.T) {
	for name, tt := range map[string]struct {
		level slog.Level
		why   error
		want  []string // parts of each line
	}{
		"without a driver, in plain words": {slog.LevelInfo, nvml.ErrNoLibrary, []string{
			`level=WARN msg="no NVIDIA driver here: see tpotscope doctor"`, `see tpotscope doctor" repeated=5`,
		}},
		"for who debugs, in the driver's own": {slog.LevelDebug, nvml.ErrNoLibrary, []string{
			`level=WARN msg="no NVIDIA driver here`, `level=DEBUG msg="gpu helper lost" error="helper ended: driver library not found"`,
			"repeated=5", "level=DEBUG",
		}},
		"otherwise with its cause": {slog.LevelInfo, errors.New("it hangs"), []string{
			`level=WARN msg="gpu helper lost" cause="helper ended: it hangs"`, "repeated=5",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			now := timeline.Instant(0)
			log := newHelperLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: tt.level})), func() timeline.Instant { return now })
			for range 7 {
				log.Warn("gpu helper lost", slog.Any("error", errors.Join(errors.New("helper ended: "+tt.why.Error()))))
				now = now.Add(11 * time.Second)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(lines) != len(tt.want) {
				t.Fatalf("%d lines, want %d:\n%s", len(lines), len(tt.want), &out)
			}
			for i, want := range tt.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("line %d is %s, want %s in it", i, lines[i], want)
				}
			}
		})
	}
}

func TestAnotherLossIsSaidAtOnce(t *testing.T) {
	var out bytes.Buffer
	log := newHelperLog(slog.New(slog.NewTextHandler(&out, nil)), func() timeline.Instant { return 0 })
	log.Info("gpu helper", slog.String("line", "of its own"))
	log.Warn("gpu helper lost", slog.Any("error", errors.New("one")))
	log.Warn("gpu helper lost", slog.Any("error", errors.New("other")))
	log.Error("gpu helper does not die, abandoned", slog.Int("pid", 7))
	if n := strings.Count(out.String(), "\n"); n != 3 || !strings.Contains(out.String(), "pid=7") {
		t.Errorf("%d lines:\n%s", n, &out)
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
	ports, ok := localPorts([]timeline.Target{{EngineURL: "http://127.0.0.1:9/b"}, {EngineURL: "http://localhost:8"}, {EngineURL: "http://127.0.0.1:9/a"}})
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
		if ports, ok := localPorts([]timeline.Target{{EngineURL: tt.url}}); ok != tt.ok || ok && ports[0] != 8000 {
			t.Errorf("%s: %v, %v", tt.url, ports, ok)
		}
	}
	if _, ok := localPorts(nil); ok {
		t.Error("no engine is local")
	}
}
