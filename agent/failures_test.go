package agent_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tpotscope/tpotscope/agent/doctor"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

// failure is one thing that a driver, its library or the helper does.
type failure struct {
	name     string
	long     bool // takes longer than a test that runs each time may
	gpus     int  // zero: one
	noGPM    bool
	abandons bool          // a process is left on purpose: it cannot be ended
	before   func(*scene)  // what is so when the agent starts
	cause    func(*scene)  // what happens to a healthy agent; nil: it is so from the start
	said     said          // where it has to stand
	once     bool          // as an event, one time
	within   time.Duration // of the cause; zero: 5 s
	gone     []int         // GPUs whose series have to go
	stay     []int         // GPUs that go on
	lines    int           // of the log, at most; zero: three
	then     func(*scene)  // more to look at while it lasts
	heal     func(*scene)  // ends the cause
	recover  time.Duration // at most; zero: 30 s
	stays    string        // why nothing recovers
}

// restarts is a metric that says that helpers were started again.
func restarts(_ *scene, page string) any {
	if v, ok := value(page, "tpotscope_helper_restarts_total", ""); ok && v > 0 {
		return "restarts>0"
	}
	return nil
}

// slower is a metric that says that a GPU is read less often.
func slower(gpu int) func(*scene, string) any {
	return func(s *scene, page string) any {
		if v, ok := value(page, "tpotscope_sampler_rate_hertz", s.uuids[gpu]); ok && v < 8 {
			return fmt.Sprintf("rate %.1f Hz", v)
		}
		return nil
	}
}

// absent is a metric that says by its absence that a GPU is not read.
func absent(gpu int) func(*scene, string) any {
	return func(s *scene, page string) any {
		if !shows(page, s.uuids[gpu]) {
			return "series gone"
		}
		return nil
	}
}

// stopped is a metric that says that a GPU's windows do not go on.
func stopped(gpu int) func(*scene, string) any {
	var last float64
	var since time.Time
	return func(s *scene, page string) any {
		v, ok := value(page, "tpotscope_gpu_covered_seconds_total", s.uuids[gpu])
		switch {
		case !ok:
			return "series gone"
		case v != last || since.IsZero():
			last, since = v, time.Now()
		case time.Since(since) > 1500*time.Millisecond:
			return "covered_seconds stands"
		}
		return nil
	}
}

// place puts the helper where it is looked for.
func (s *scene) place() {
	must(s.t, os.Mkdir(s.dir+"/later", 0o700))
	must(s.t, os.Symlink(s.bin.Helper, filepath.Join(s.dir, "later", remote.HelperName)))
}

// real puts the real helper back.
func (s *scene) real() { s.install(s.bin.Helper) }

func (s *scene) kill() {
	pid, _, _ := s.helperHealth()
	if pid > 0 {
		must(s.t, syscall.Kill(pid, syscall.SIGKILL))
		s.killed = pid
	}
}

// someStreams waits until requests went through.
func (s *scene) someStreams() {
	until(s.t, 10*time.Second, "streams", func() bool {
		s.sends.mu.Lock()
		defer s.sends.mu.Unlock()
		return s.sends.streams > streamCount
	})
}

// hello is the first frame of a helper.
func hello(version int) string {
	text, _ := json.Marshal(map[string]any{"protocol": "tpotscope-nvml", "version": version})
	n := len(text) + 1
	return fmt.Sprintf(`\%03o\%03o\000\000\001%s`, n%256, n/256, strings.ReplaceAll(string(text), `"`, `\042`))
}

func failures() []failure {
	return append(append(helperFailures(), driverFailures()...), counterFailures()...)
}

// helperFailures are those of the helper as a program.
func helperFailures() []failure {
	return []failure{{
		name: "helper missing", before: func(s *scene) { must(s.t, os.Remove(s.helper)) },
		said: said{health: "no such file", log: "no such file", kind: timeline.EventSamplerLost, event: "no such file", metric: restarts},
		heal: (*scene).real,
	}, {
		name: "helper nowhere", before: func(s *scene) { s.cfg.NVML.Helper, s.deps.HelperDir = "", s.dir+"/later" },
		said: said{health: "no counters: find tpotscope-nvml", log: "helper not found", kind: timeline.EventSamplerLost, event: "find tpotscope-nvml", metric: absent(0)},
		once: true, then: (*scene).someStreams, heal: (*scene).place,
	}, {
		name: "helper exits 1 at once", before: func(s *scene) { s.script("echo some reason >&2; exit 1") },
		said: said{health: "exit status 1: some reason", log: "exit status 1: some reason", kind: timeline.EventSamplerLost, event: "some reason", metric: restarts},
		once: true, heal: (*scene).real,
	}, {
		name: "helper exits 127", before: func(s *scene) { s.script("LD_BIND_NOW=1 exec " + s.bin.Helper + ` "$@"`) },
		said: said{health: "exit status 127", log: "exit status 127", kind: timeline.EventSamplerLost, event: "symbol lookup error", metric: restarts},
		once: true, heal: (*scene).real,
	}, {
		name: "garbage on the frames", before: func(s *scene) { s.script("head -c 4096 /dev/zero | tr '\\0' x >&3; exec sleep 60") },
		said: said{health: "bad frame", log: "bad frame", kind: timeline.EventSamplerLost, event: "frame", metric: restarts},
		once: true, heal: (*scene).real, within: 10 * time.Second,
	}, {
		name: "helper of another version", before: func(s *scene) { s.script("printf '" + hello(1) + "' >&3; exec sleep 60") },
		said: said{health: "install both from one build", log: "install both from one build", kind: timeline.EventSamplerLost, event: "speaks version 1", metric: restarts},
		once: true, heal: (*scene).real,
	}, {
		name: "killed once", gpus: 2, cause: (*scene).kill,
		said: said{health: "signal: killed", log: "signal: killed", kind: timeline.EventSamplerLost, event: "killed", metric: restarts},
		once: true, gone: []int{0, 1}, heal: func(*scene) {},
	}, {
		name: "killed once, GPU without windows", noGPM: true, cause: (*scene).kill,
		said: said{health: "signal: killed", log: "signal: killed", kind: timeline.EventSamplerLost, event: "killed", metric: restarts},
		once: true, gone: []int{0}, heal: func(*scene) {},
	}, {
		name: "killed ten times", long: true, cause: (*scene).kill,
		said: said{health: "signal: killed", log: "signal: killed", kind: timeline.EventSamplerLost, event: "killed", metric: restarts},
		gone: []int{0}, then: killAgain, heal: func(*scene) {}, recover: time.Minute, lines: 5,
	}}
}

// killAgain kills nine more helpers, each as soon as it is there, and looks at how long it takes until the next.
func killAgain(s *scene) {
	var waits []time.Duration
	last := s.killed
	for range 9 {
		began, pid := time.Now(), 0
		until(s.t, 2*time.Minute, "the next helper", func() bool {
			pid, _, _ = s.helperHealth()
			return pid > 0 && pid != last
		})
		waits = append(waits, time.Since(began))
		must(s.t, syscall.Kill(pid, syscall.SIGKILL))
		last = pid
	}
	early, late := waits[0]+waits[1]+waits[2], waits[6]+waits[7]+waits[8]
	s.t.Logf("waits between kills: %v", waits)
	if late < 4*early {
		s.t.Errorf("waits %v: they do not grow", waits)
	}
}

// driverFailures are those of the driver's library and of GPUs as a whole.
func driverFailures() []failure {
	return []failure{{
		name: "SIGSEGV in a call", gpus: 2,
		cause: func(s *scene) { s.fault(sim.Fault{GPU: 1, Mode: sim.ModeCrash}, nvml.CallTemperature) },
		said:  said{health: "SIGSEGV", log: "SIGSEGV: segmentation violation", kind: timeline.EventSamplerLost, event: "exit status 2", metric: restarts},
		gone:  []int{0, 1}, heal: func(s *scene) { s.fault(sim.Fault{GPU: 1}, nvml.CallTemperature) },
	}, {
		name: "no driver", before: func(s *scene) { must(s.t, s.page.SetInit(9, 0)) },
		said: said{health: "driver is not loaded", log: "driver is not loaded", kind: timeline.EventSamplerLost, event: "not loaded", metric: restarts},
		once: true, heal: func(s *scene) { must(s.t, s.page.SetInit(0, 0)) },
	}, {
		name: "no driver library", before: func(s *scene) { s.cfg.NVML.Library = filepath.Join(s.dir, "libnvidia-ml.so.1") },
		said: said{health: "driver library not found", log: "no NVIDIA driver here: see tpotscope doctor", kind: timeline.EventSamplerLost, event: "library not found", metric: restarts},
		once: true, heal: func(s *scene) { must(s.t, os.Symlink(s.bin.Driver, filepath.Join(s.dir, "libnvidia-ml.so.1"))) },
	}, {
		name: "library and driver differ", before: func(s *scene) { must(s.t, s.page.SetInit(18, 0)) },
		said: said{health: "versions differ", log: "versions differ", kind: timeline.EventSamplerLost, event: "versions differ", metric: restarts},
		once: true, heal: func(s *scene) { must(s.t, s.page.SetInit(0, 0)) },
	}, {
		name: "driver reloaded with another version",
		cause: func(s *scene) {
			must(s.t, s.page.SetInit(18, 0))
			s.fault(sim.Fault{Code: 15})
		},
		said: said{health: "versions differ", log: "versions differ", kind: timeline.EventSamplerLost, event: "versions differ", metric: restarts},
		gone: []int{0}, lines: 4,
		heal: func(s *scene) {
			must(s.t, s.page.SetDriver("590.44.01"))
			must(s.t, s.page.SetInit(0, 0))
			s.fault(sim.Fault{})
		},
	}, {
		name: "one GPU hangs", gpus: 2, cause: func(s *scene) { s.fault(sim.Fault{GPU: 1, Delay: time.Hour}, nvml.CallTake) },
		said: said{health: "has not come back", log: "has not come back", kind: timeline.EventGap, event: "has not come back", metric: absent(1)},
		once: true, gone: []int{1}, stay: []int{0}, heal: func(s *scene) { s.fault(sim.Fault{GPU: 1}, nvml.CallTake) },
	}, {
		name: "all GPUs hang", long: true, gpus: 2, cause: func(s *scene) { s.everyGPU(sim.Fault{Delay: time.Hour}, nvml.CallTake) },
		said:   said{health: "helper says nothing", log: "helper says nothing", kind: timeline.EventSamplerLost, event: "says nothing", metric: restarts},
		within: 20 * time.Second, gone: []int{0, 1}, lines: 4, heal: func(s *scene) { s.everyGPU(sim.Fault{}, nvml.CallTake) },
	}, {
		name: "helpers that cannot be killed", long: true, gpus: 2, abandons: true,
		before: func(s *scene) { s.script("exec " + s.bin.Guard + " " + s.dir + "/release " + s.bin.Helper + ` "$@"`) },
		cause:  func(s *scene) { s.everyGPU(sim.Fault{Delay: time.Hour, Mode: sim.ModeStubborn}, nvml.CallTake) },
		said: said{
			health: "2 helpers hang in the driver and do not die", log: "2 helpers hang in the driver and do not die",
			kind: timeline.EventSamplerLost, event: "do not die", metric: restarts,
		},
		within: 90 * time.Second, gone: []int{0, 1}, lines: 7, then: noThirdHelper,
		heal: func(s *scene) {
			s.real()
			s.everyGPU(sim.Fault{}, nvml.CallTake)
			must(s.t, os.WriteFile(s.dir+"/release", nil, 0o600))
		},
		recover: time.Minute,
	}, {
		name: "one GPU is lost", gpus: 3, cause: func(s *scene) { s.fault(sim.Fault{GPU: 1, Code: 15}) },
		said: said{health: "gpu is lost", log: "gpu is lost", kind: timeline.EventGPULost, event: "gpu is lost", metric: absent(1)},
		once: true, gone: []int{1}, stay: []int{0, 2},
		heal: func(s *scene) { s.fault(sim.Fault{GPU: 1}) }, recover: time.Minute, // it is looked for
	}, {
		name: "all GPUs are lost", gpus: 2, cause: func(s *scene) { s.everyGPU(sim.Fault{Code: 15}) },
		said: said{health: "gpu is lost", log: "gpu is lost", kind: timeline.EventGPULost, event: "gpu is lost", metric: absent(1)},
		gone: []int{0, 1}, lines: 6, heal: func(s *scene) { s.everyGPU(sim.Fault{}) },
	}, {
		name: "Xid", gpus: 2, cause: func(s *scene) { must(s.t, s.page.Tell(1, 8, 31)) },
		said: said{health: "Xid 31", log: "Xid 31", kind: timeline.EventXid, event: "Xid 31", metric: func(s *scene, page string) any {
			if v, ok := value(page, "tpotscope_gpu_xids_total", s.uuids[1]); ok && v == 1 {
				return "xids_total 1"
			}
			return nil
		}},
		once: true, lines: 1, stay: []int{0, 1}, heal: func(*scene) {},
	}}
}

// noThirdHelper makes sure that two helpers are the most that are left to the kernel.
func noThirdHelper(s *scene) {
	_, started, abandoned := s.helperHealth()
	if abandoned != 2 || started != 1 {
		s.t.Errorf("%d helpers are abandoned after %d restarts, want 2 after 1", abandoned, started)
	}
	until(s.t, 5*time.Second, "the series of abandoned helpers", func() bool {
		page, _ := s.seen.last()
		v, ok := value(page, "tpotscope_helper_abandoned", "")
		return ok && v == 2
	})
	looked := time.Now()
	until(s.t, 6*time.Second, "nothing to happen", func() bool { return time.Since(looked) > 5*time.Second })
	if pid, again, _ := s.helperHealth(); pid != 0 || again != started {
		s.t.Errorf("helper %d was started after two were abandoned", pid)
	}
}

// counterFailures are those of single calls and of what they say.
func counterFailures() []failure {
	slow := &slowness{}
	return []failure{{
		name: "no permission from the start", before: func(s *scene) { s.fault(sim.Fault{Code: 4}, nvml.CallTake) },
		said: said{health: "no permission", log: "no permission", kind: timeline.EventGap, event: "no permission", metric: stopped(0)},
		once: true, then: doctorTells("dram_util", "no permission", "the cluster's admin"), heal: func(s *scene) { s.fault(sim.Fault{}, nvml.CallTake) }, recover: 40 * time.Second,
	}, {
		name: "no permission after a while", cause: func(s *scene) { s.fault(sim.Fault{Code: 4}, nvml.CallTake) },
		said: said{health: "no permission", log: "permission lost after", kind: timeline.EventCapability, event: "permission lost after", metric: stopped(0)},
		once: true, heal: func(s *scene) { s.fault(sim.Fault{}, nvml.CallTake) }, recover: 40 * time.Second,
	}, {
		name: "windows are not supported", before: func(s *scene) { s.fault(sim.Fault{Code: 3}, nvml.CallTake) },
		said: said{health: "not supported", log: "not supported", kind: timeline.EventGap, event: "not supported", metric: stopped(0)},
		once: true, then: doctorTells("dram_util", "not supported", "nobody"), heal: func(s *scene) { s.fault(sim.Fault{}, nvml.CallTake) }, stays: "for good, until the helper is started anew",
	}, {
		name: "windows are no numbers", cause: func(s *scene) { s.world.nan.Store(true) },
		said: said{health: "no counters of GPU", log: "no counter of the window could be used", kind: timeline.EventGap, event: "no counter of the window", metric: stopped(0)},
		heal: func(s *scene) { s.world.nan.Store(false) },
	}, {
		name: "windows are frozen", within: 10 * time.Second, cause: func(s *scene) { must(s.t, s.page.SetFrozen(0, true)) },
		said: said{health: "untrusted", log: "windows repeat the same numbers", kind: timeline.EventGap, event: "repeat the same", metric: stopped(0)},
		heal: func(s *scene) { must(s.t, s.page.SetFrozen(0, false)) },
	}, {
		name: "windows are zero while busy", within: 10 * time.Second, cause: func(s *scene) { s.world.zero.Store(true) },
		said: said{health: "untrusted", log: "read zero while", kind: timeline.EventGap, event: "read zero while", metric: stopped(0)},
		heal: func(s *scene) { s.world.zero.Store(false) },
	}, {
		name: "every call takes 50 ms", long: true, gpus: 2, within: 20 * time.Second, before: slow.listen,
		cause: func(s *scene) { s.fault(sim.Fault{Delay: 50 * time.Millisecond}) },
		said:  said{health: "no counters of GPU", log: "", kind: timeline.EventRate, event: "of a thread", metric: slower(0)},
		stay:  []int{1}, then: slow.respected, heal: func(s *scene) { s.fault(sim.Fault{}) }, recover: time.Minute, lines: 6,
	}}
}

// doctorTells makes sure that the doctor, who asks the driver too, says what is wrong and who can help.
func doctorTells(what ...string) func(*scene) {
	return func(s *scene) {
		report := doctor.Run(s.t.Context(), doctor.Options{
			Helper: s.bin.Helper, Library: s.bin.Driver, Env: append(os.Environ(), s.deps.HelperEnv...), Simulated: true, Engines: []string{"http://127.0.0.1:9"}, // nobody is there
		})
		var text strings.Builder
		must(s.t, report.Text(&text))
		for _, w := range what {
			if !strings.Contains(text.String(), w) {
				s.t.Errorf("the doctor does not say %q:\n%s", w, text.String())
			}
		}
	}
}

// slowness looks at what share of a thread a sampler takes.
type slowness struct{ source *remote.Source }

// listen gives the agent a source that the test can ask too.
func (sl *slowness) listen(s *scene) {
	sl.source = remote.NewSource(remote.Options{
		Helper: s.helper, Library: s.bin.Driver, Env: s.deps.HelperEnv, Config: nvml.DefaultConfig(), Now: s.clock.Now,
	})
	s.deps.Counters = sl.source
}

// respected looks, once the sampler has had time to adapt, at what the calls take of a thread: 2 % are allowed, and what
// is asked rarely comes on top.
func (sl *slowness) respected(s *scene) {
	busy := func() (sum time.Duration) {
		for _, st := range sl.source.Stats().GPUs[:1] {
			for _, c := range st.Calls {
				sum += c.Total
			}
		}
		return sum
	}
	pass := func(d time.Duration) {
		began := time.Now()
		until(s.t, d+time.Second, "time to pass", func() bool { return time.Since(began) > d })
	}
	const looked = 20 * time.Second
	pass(35 * time.Second) // three surveys
	before := busy()
	pass(looked)
	share := (busy() - before).Seconds() / looked.Seconds()
	s.t.Logf("calls take %.1f %% of a thread", 100*share)
	if share > 0.06 || share == 0 {
		s.t.Errorf("calls take %.1f %% of a thread, 2 %% are allowed", 100*share)
	}
}
