package remote

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/sim"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(buildDir())
		os.Exit(code)
	}))
}

// record keeps what a source tells.
type record struct {
	mu      sync.Mutex
	gpus    [][]timeline.GPU
	samples []timeline.Sample
	caps    []timeline.Capability
	events  []timeline.Event
}

func (r *record) SetGPUs(g []timeline.GPU) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gpus = append(r.gpus, g)
}

func (r *record) AddSample(s *timeline.Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, *s)
}

func (r *record) AddCapability(c timeline.Capability) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.caps = append(r.caps, c)
}

func (r *record) AddEvent(e timeline.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *record) kinds() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kinds []string
	for _, e := range r.events {
		kinds = append(kinds, string(e.Kind))
	}
	return kinds
}

func (r *record) statesOf(gpu int, c timeline.Counter) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var states []string
	for _, k := range r.caps {
		if k.GPU == gpu && k.Call == c.String() {
			states = append(states, k.State.String())
		}
	}
	return states
}

// windows returns the samples of a GPU that hold c.
func (r *record) windows(gpu int, c timeline.Counter) []timeline.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.samples), func(s timeline.Sample) bool { return s.GPU != gpu || !s.Has.Has(c) })
}

// act is what a fake helper does.
type act struct {
	world   sim.World
	open    func() (nvml.Library, error)
	dies    time.Duration // its frames end then; zero: never
	silent  bool          // says its GPUs and nothing more, and ignores SIGTERM
	undying bool          // ignores SIGKILL too
	stderr  string
}

// stage starts fake helpers in the bubble of a test, one act after another; the last act is played again and again.
type stage struct {
	acts   []act
	now    func() timeline.Instant
	starts int
	free   []func() // ends the undying
}

func (st *stage) spawn() (*process, error) {
	a := st.acts[min(st.starts, len(st.acts)-1)]
	st.starts++
	framesR, framesW := io.Pipe()
	stdinR, stdinW := io.Pipe()
	stderrR, stderrW := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	end := sync.OnceFunc(func() {
		_, _ = framesW.Close(), stderrW.Close()
		close(ended)
	})
	if a.undying {
		st.free = append(st.free, end)
	}
	open := a.open
	if open == nil {
		open = func() (nvml.Library, error) { return sim.NewLibrary(a.world, sim.Options{}, st.now), nil }
	}
	if a.stderr != "" {
		go func() { _, _ = io.WriteString(stderrW, a.stderr) }()
	}
	if a.silent {
		go func() {
			b, _ := appendJSON(nil, kindHello, hello{protocol, protocolVersion})
			b, _ = appendJSON(b, kindGPUs, a.world.GPUs())
			_, _ = framesW.Write(b)
		}()
	} else {
		go func() {
			// The memory is that of the test, which keeps all that it hears.
			_ = serveWithin(ctx, open, nvml.DefaultConfig(), framesW, stdinR, st.now, func() uint64 { return 0 })
			end()
		}()
	}
	if a.dies > 0 {
		go func() {
			if sleep(ctx, a.dies) {
				_ = framesW.Close()
				cancel()
			}
		}()
	}
	return &process{
		pid: 1000 + st.starts, frames: framesR, stderr: stderrR, stdin: stdinW, ended: ended,
		signal: func(sig os.Signal) error {
			switch {
			case sig == os.Kill && !a.undying:
				cancel()
				end()
			case sig != os.Kill && !a.silent:
				cancel()
			}
			return nil
		},
		exit: func() error { return nil },
	}, nil
}

// play runs a source over fake helpers for d.
func play(t *testing.T, d time.Duration, during func(*Source, *stage), acts ...act) (*record, *Source, *stage) {
	t.Helper()
	start := time.Now()
	now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(start)) }
	st := &stage{acts: acts, now: now}
	s := NewSource(Options{Config: nvml.DefaultConfig(), Now: now})
	s.spawn = st.spawn
	r := &record{}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	done := make(chan error)
	go func() { done <- s.Run(ctx, r) }()
	if during != nil {
		during(s, st)
	}
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	for _, end := range st.free {
		end()
	}
	synctest.Wait()
	return r, s, st
}

func TestHelperThatDiesIsReplacedAndTheLossIsSaidAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := sim.Waves{Count: 2}
		r, s, _ := play(t, 20*time.Second, nil, act{world: world, dies: 5 * time.Second}, act{world: world})
		if diff := cmp.Diff([]string{"sampler_started", "sampler_lost", "gap", "gap", "sampler_started"}, r.kinds()); diff != "" {
			t.Errorf("events (-want +have):\n%s", diff)
		}
		if at := r.events[1].At.Sub(timeline.Instant(time.Hour)); at > 5200*time.Millisecond {
			t.Errorf("the loss at 5 s was said at %v", at)
		}
		if diff := cmp.Diff([]string{"ok", "stale", "ok"}, r.statesOf(1, timeline.DRAMUtil)); diff != "" {
			t.Errorf("states (-want +have):\n%s", diff)
		}
		if st := s.Stats(); st.Starts != 2 || st.Restarts != 1 || st.PID != 0 || st.Frames == 0 || len(st.GPUs) != 2 {
			t.Errorf("stats %+v, want two starts and one restart", st)
		}
		if n := len(r.windows(0, timeline.DRAMUtil)); n < 150 {
			t.Errorf("%d windows of gpu 0 in 20 s with a loss, want 160 or more", n)
		}
	})
}

func TestGPUsKeepTheirPositions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		three := sim.Waves{Count: 3}
		r, _, _ := play(t, 20*time.Second, nil,
			act{world: three, dies: 3 * time.Second}, act{world: shuffled{three}, dies: 3 * time.Second}, act{world: sim.Waves{Count: 2}})
		for i, list := range r.gpus {
			for at, g := range list {
				if g.UUID != three.GPUs()[at].UUID {
					t.Errorf("list %d has %s at %d", i, g.UUID, at)
				}
			}
		}
		if states := r.statesOf(2, timeline.SMClock); states[len(states)-1] != "lost" {
			t.Errorf("gpu 2, which the third helper does not have, ends %v, want lost", states)
		}
		if !slices.Contains(r.kinds(), "gpu_lost") {
			t.Errorf("events %v, want a lost gpu", r.kinds())
		}
		// In the second helper's order gpu 0 is the driver's last.
		for _, s := range r.windows(0, timeline.MemUsed) {
			if s.Value[timeline.MemUsed] != three.At(0, 0).MemUsedBytes {
				t.Errorf("gpu 0 shows the memory of another: %v", s.Value[timeline.MemUsed])
			}
		}
	})
}

// shuffled is a world whose driver lists the GPUs the other way round.
type shuffled struct{ sim.Waves }

func (w shuffled) GPUs() []timeline.GPU {
	g := w.Waves.GPUs()
	slices.Reverse(g)
	return g
}

func (w shuffled) At(gpu int, t time.Duration) sim.Gauges { return w.Waves.At(w.Count-1-gpu, t) }

// losing is a helper whose second GPU is lost for as long as lost says.
func losing(lost func() bool) act {
	return act{open: func() (nvml.Library, error) {
		begin := time.Now()
		now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(begin)) }
		lib := sim.NewLibrary(sim.Waves{Count: 2}, sim.Options{}, now)
		if lost() {
			lib.SetFault(sim.Fault{GPU: 1, Call: int(nvml.CallReasons), Code: 15, After: time.Second})
		}
		return lib, nil
	}}
}

func TestLostGPUIsLookedForSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		r, s, _ := play(t, 2*time.Minute, nil, losing(func() bool { return time.Since(begin) < 5*time.Second }))
		if diff := cmp.Diff([]string{"ok", "lost", "ok"}, r.statesOf(1, timeline.SMClock)); diff != "" {
			t.Errorf("states of the lost gpu (-want +have):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"ok", "stale", "ok"}, r.statesOf(0, timeline.SMClock)); diff != "" {
			t.Errorf("states of the other (-want +have):\n%s", diff)
		}
		if st := s.Stats(); st.Starts != 2 || st.Killed != 0 {
			t.Errorf("stats %+v, want one start more", st)
		}
		if n := len(r.windows(0, timeline.DRAMUtil)); n < 1050 {
			t.Errorf("%d windows of the other gpu in two minutes, want 1050: a look costs it a second", n)
		}
	})
}

func TestGPUThatStaysLostIsLookedForSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		r, s, _ := play(t, 30*time.Minute, func(s *Source, _ *stage) {
			time.Sleep(20 * time.Minute)
			// 10, 20, 40, 80 and 160 s, and then each five minutes.
			if n := s.Stats().Starts; n < 8 || n > 9 {
				t.Errorf("%d starts in twenty minutes with a lost gpu, want 8 or 9", n)
			}
		}, losing(func() bool { return time.Since(begin) < 20*time.Minute }))
		if n := s.Stats().Starts; n > 10 {
			t.Errorf("%d starts: nothing is lost any more", n)
		}
		if st := r.statesOf(1, timeline.SMClock); st[len(st)-1] != "ok" {
			t.Errorf("the gpu ends %v", st)
		}
		if n := len(r.windows(0, timeline.DRAMUtil)); float64(n) < 0.98*30*545 {
			t.Errorf("%d windows of the other gpu, want 98 %% of what there is", n)
		}
	})
}

func TestDriverThatTakesALookBadlyIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := losing(func() bool { return true })
		refuses := act{open: func() (nvml.Library, error) { return nil, nvml.ErrNoDriver }}
		_, s, _ := play(t, 4*time.Minute, nil, gone, refuses, gone)
		if n := s.Stats().Starts; n != 3 {
			t.Errorf("%d starts, want 3: no further look for five minutes", n)
		}
	})
}

func TestAnotherLossIsLookedForSoon(t *testing.T) {
	var l looks
	now := timeline.Instant(time.Hour)
	until := func(lost int) time.Duration {
		from := now
		for !l.look(lost, now) {
			now = now.Add(100 * time.Millisecond)
		}
		return now.Sub(from)
	}
	var waits []time.Duration
	for _, lost := range []int{1, 1, 1, 2, 2, 1, 2} {
		waits = append(waits, until(lost))
		l.look(0, now) // the helper starts
	}
	want := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second}
	if diff := cmp.Diff(want, waits); diff != "" {
		t.Errorf("waits (-want +have):\n%s", diff)
	}
}

// rates returns how many samples with c a GPU gave in each whole second.
func (r *record) rates(gpu int, c timeline.Counter) map[int]int {
	n := map[int]int{}
	for _, s := range r.windows(gpu, c) {
		n[int(s.Over.Start.Sub(timeline.Instant(time.Hour)).Seconds())]++
	}
	return n
}

func TestBurstReachesTheHelperAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s, _ := play(t, 20*time.Second, func(s *Source, _ *stage) {
			time.Sleep(5 * time.Second)
			if err := s.Burst(4 * time.Second); err != nil {
				t.Errorf("burst: %v", err)
			}
		}, act{world: sim.Waves{Count: 2}})
		n := r.rates(1, timeline.SMClock)
		if n[3] != 10 || n[7] < 49 || n[7] > 51 || n[12] != 10 {
			t.Errorf("readings of clocks a second %v, want 10 before and after, and 50 in the burst", n)
		}
		if err := s.Burst(time.Second); !errors.Is(err, ErrNoHelper) {
			t.Errorf("burst without a helper: %v", err)
		}
	})
}

func TestBurstGoesOnInTheNextHelper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := play(t, 25*time.Second, func(s *Source, _ *stage) {
			time.Sleep(5 * time.Second)
			if err := s.Burst(12 * time.Second); err != nil {
				t.Errorf("burst: %v", err)
			}
		}, act{world: sim.Waves{Count: 1}, dies: 8 * time.Second}, act{world: sim.Waves{Count: 1}})
		n := r.rates(0, timeline.SMClock)
		if n[6] < 49 || n[13] < 49 || n[15] < 49 || n[19] != 10 || n[22] != 10 {
			t.Errorf("readings of clocks a second %v, want 50 on both sides of the loss at 8 s, and 10 from 17 s on", n)
		}
	})
}

func TestHelperThatIsInstalledLaterIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(begin)) }
		asked := 0
		log := &bytes.Buffer{}
		s := NewSource(Options{Config: nvml.DefaultConfig(), Now: now, Logger: slog.New(slog.NewTextHandler(log, nil)), Find: func() (string, error) {
			if asked++; time.Since(begin) < 10*time.Minute {
				return "", errors.New("find helper: nowhere")
			}
			return "/opt/helper", nil
		}})
		st := &stage{acts: []act{{world: sim.Waves{Count: 1}}}, now: now}
		s.spawn = st.spawn
		r := &record{}
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Minute)
		defer cancel()
		if err := s.Run(ctx, r); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"sampler_lost", "sampler_started"}, r.kinds()); diff != "" || !strings.Contains(r.events[0].Detail, "nowhere") {
			t.Errorf("events (-want +have):\n%s", diff)
		}
		if len(r.windows(0, timeline.DRAMUtil)) < 200 {
			t.Errorf("%d windows in the half minute after it was found", len(r.windows(0, timeline.DRAMUtil)))
		}
		if asked < 10 || asked > 40 {
			t.Errorf("asked %d times in ten minutes, want some 25: the first soon, then each 30 s", asked)
		}
		if strings.Count(log.String(), "helper not found") != 1 || strings.Count(log.String(), "helper found") != 1 || s.Stats().Restarts != 0 {
			t.Errorf("stats %+v, the log:\n%s", s.Stats(), log)
		}
	})
}

func TestWhatTheDriverTellsIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lib *sim.Library
		r, s, _ := play(t, 60*time.Second, func(_ *Source, _ *stage) {
			time.Sleep(5 * time.Second)
			lib.Tell(nvml.Happening{Device: 1, Kind: timeline.EventXid, Xid: 79, Detail: "Xid 79"})
			lib.Tell(nvml.Happening{Device: 0, Kind: timeline.EventGPUFault, Detail: "memory row retired"})
			time.Sleep(10 * time.Second)
			lib.SetChanged("the driver lists 3 gpus, and listed 2")
		}, act{open: func() (nvml.Library, error) {
			begin := time.Now()
			lib = sim.NewLibrary(sim.Waves{Count: 2}, sim.Options{}, func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(begin)) })
			return lib, nil
		}})
		want := []string{"sampler_started", "xid", "gpu_fault", "sampler_lost", "gap", "gap", "sampler_started"}
		if diff := cmp.Diff(want, r.kinds()); diff != "" {
			t.Fatalf("events (-want +have):\n%s", diff)
		}
		if e := r.events[1]; e.GPU != 1 || e.Detail != "Xid 79" {
			t.Errorf("event %+v, want Xid 79 of gpu 1", e)
		}
		for gpu, want := range []float64{0, 1} {
			seen := r.windows(gpu, timeline.Xids)
			if len(seen) < 20 || seen[0].Value[timeline.Xids] != 0 || seen[12].Value[timeline.Xids] != want {
				t.Errorf("gpu %d: %d readings of errors, want 0 and then %v", gpu, len(seen), want)
			}
		}
		if v := s.Inventory(); len(v) != 2 || len(v[1].NVLinks) != 18 || v[1].Processes[0].PID != 4001 || v[1].NUMANode != 0 {
			t.Errorf("inventory %+v", v)
		}
	})
}

func TestGPUsOfOneUUIDAreToldApartByTheBus(t *testing.T) {
	in := newInbox(NewSource(Options{Now: func() timeline.Instant { return 1 }}), &record{})
	twin := func(bus string) timeline.GPU { return timeline.GPU{UUID: "GPU-a", PCIBusID: bus} }
	in.takeGPUs([]timeline.GPU{twin("1"), twin("2"), {UUID: "GPU-b", PCIBusID: "3"}}, 1)
	in.takeGPUs([]timeline.GPU{{UUID: "gpu-B", PCIBusID: "4"}, twin("2"), twin("1"), {UUID: "MIG-c", PCIBusID: "1", ParentUUID: "GPU-a"}}, 2)
	if diff := cmp.Diff([]int{2, 1, 0, 3}, in.position); diff != "" {
		t.Errorf("positions (-want +have):\n%s", diff)
	}
}

func FuzzCommands(f *testing.F) {
	good, err := appendJSON(nil, kindBurst, burst{For: time.Second})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(append([]byte{1, 0, 0, 0, 99}, good...))
	f.Add([]byte("quit\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var whole, pieces []time.Duration
		readCommands(bytes.NewReader(b), func(d time.Duration) { whole = append(whole, d) })
		readCommands(iotest.OneByteReader(bytes.NewReader(b)), func(d time.Duration) { pieces = append(pieces, d) })
		if diff := cmp.Diff(whole, pieces); diff != "" {
			t.Errorf("commands depend on how they are cut (-whole +pieces):\n%s", diff)
		}
		if bytes.HasPrefix(b, good) && (len(whole) == 0 || whole[0] != time.Second) {
			t.Errorf("%v of a stream that begins with a burst of a second", whole)
		}
	})
}

func TestSilentHelperIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := sim.Waves{Count: 1}
		r, s, _ := play(t, 30*time.Second, nil, act{world: world, silent: true}, act{world: world})
		if st := s.Stats(); st.Killed != 1 || st.Abandoned != 0 || st.Starts != 2 {
			t.Errorf("stats %+v, want one killed and two starts", st)
		}
		if !strings.Contains(r.events[1].Detail, "says nothing") {
			t.Errorf("event %+v, want that it says nothing", r.events[1])
		}
		if at := r.events[1].At.Sub(timeline.Instant(time.Hour)); at > 6*time.Second {
			t.Errorf("the silence was noticed at %v, want within 6 s", at)
		}
	})
}

func TestTheLossIsLoggedWhenTheHelperIsGivenUpOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := sim.Waves{Count: 1}
		begin, log := time.Now(), &bytes.Buffer{}
		now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(begin)) }
		s := NewSource(Options{Config: nvml.DefaultConfig(), Now: now, Logger: slog.New(slog.NewTextHandler(log, nil))})
		st := &stage{acts: []act{{world: world, silent: true}}, now: now}
		s.spawn = st.spawn
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		if err := s.Run(ctx, &record{}); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "gpu helper lost"); n != 1 || !strings.Contains(log.String(), errSilent.Error()) {
			t.Errorf("a helper that fell silent at once, and takes eight seconds to end, after six seconds:\n%s", log)
		}
	})
}

func TestHelpersThatDoNotDieAreAbandonedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := sim.Waves{Count: 1}
		hang := act{world: world, silent: true, undying: true}
		r, s, st := play(t, 3*time.Minute, func(s *Source, st *stage) {
			time.Sleep(2 * time.Minute)
			if have := s.Stats(); have.Abandoned != 2 || have.AbandonedNow != 2 || !have.Stopped || have.Starts != 2 {
				t.Errorf("stats %+v, want two abandoned, and no third start", have)
			}
			st.free[0]() // the kernel lets one go
		}, hang, hang, act{world: world})
		if have := s.Stats(); have.Starts != 3 || have.Stopped || have.AbandonedNow != 0 || st.starts != 3 {
			t.Errorf("stats %+v, want a third start once one is gone", have)
		}
		said := slices.ContainsFunc(r.events, func(e timeline.Event) bool {
			return e.Kind == timeline.EventSamplerLost && strings.Contains(e.Detail, "no other is started")
		})
		if !said {
			t.Errorf("events %+v, want one that says that it stopped", r.events)
		}
		if len(r.windows(0, timeline.DRAMUtil)) == 0 {
			t.Error("no windows from the third helper")
		}
	})
}

func TestHelperThatIsRefusedByTheDriverSaysWhyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s, _ := play(t, 40*time.Second, nil, act{open: func() (nvml.Library, error) { return nil, nvml.ErrNoDriver }})
		if len(r.events) != 1 || !strings.Contains(r.events[0].Detail, "driver is not loaded") {
			t.Errorf("events %+v, want one with the driver's reason", r.events)
		}
		if st := s.Stats(); st.Starts < 4 || st.Starts > 9 {
			t.Errorf("%d starts in 40 s, want a handful with growing pauses", st.Starts)
		}
	})
}

func TestADriverThatIsNotKnownIsAWarning(t *testing.T) {
	var out strings.Builder
	l := newLines(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})), func() timeline.Instant { return timeline.Instant(time.Hour) })
	l.copy(strings.NewReader("a line\n" + NotePrefix + "read as another\n"))
	if have := out.String(); strings.Count(have, "\n") != 1 || !strings.Contains(have, `detail="read as another"`) {
		t.Errorf("log is %q, want the note alone", have)
	}
}

func TestWhatTheHelperWritesIsLoggedAndNotTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		start := time.Now()
		now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(start)) }
		l := newLines(slog.New(slog.NewTextHandler(&out, nil)), now)
		l.copy(strings.NewReader(strings.Repeat("a line\n", 500) + strings.Repeat("x", 10_000) + "\n"))
		if n := strings.Count(out.String(), "gpu helper"); n != lineBurst {
			t.Errorf("%d lines were logged, want %d", n, lineBurst)
		}
		time.Sleep(3 * time.Second)
		l.copy(strings.NewReader("later\n"))
		if !strings.Contains(out.String(), "line=later suppressed=481") {
			t.Errorf("log ends %q, want the later line with the count of those left out", out.String()[max(0, out.Len()-80):])
		}
		if len(l.last()) > maxLine {
			t.Errorf("a line of %d bytes was kept", len(l.last()))
		}
	})
}

// writes notes when bytes came, and what kinds of frame.
type writes struct {
	start time.Time
	at    []time.Duration
	kinds [][]kind
}

func (w *writes) Write(b []byte) (int, error) {
	w.at = append(w.at, time.Since(w.start))
	var kinds []kind
	for rest := b; len(rest) >= headerLen; rest = rest[4+binary.LittleEndian.Uint32(rest):] {
		kinds = append(kinds, kind(rest[4]))
	}
	w.kinds = append(w.kinds, kinds)
	return len(b), nil
}

func TestSamplesWaitForEachOtherAndNothingElseDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &writes{start: time.Now()}
		out := newOutbox(w)
		ended := make(chan error, 1)
		go func() { ended <- out.run() }()
		for i := range 8 { // one sample each 10 ms, from the start on
			out.AddSample(&timeline.Sample{GPU: i, Over: timeline.Span{Start: 1, End: 2}})
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		out.AddEvent(timeline.Event{Kind: timeline.EventGPULost}) // at 80 ms, while samples wait
		synctest.Wait()
		time.Sleep(time.Second)
		out.SetGPUs([]timeline.GPU{{UUID: "GPU-0"}}) // while nothing waits
		synctest.Wait()
		out.AddSample(&timeline.Sample{Over: timeline.Span{Start: 1, End: 2}})
		time.Sleep(time.Millisecond)
		out.close() // takes along what waits
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		const ms = time.Millisecond
		if diff := cmp.Diff([]time.Duration{50 * ms, 80 * ms, 1080 * ms, 1081 * ms}, w.at); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		if last := len(w.kinds[1]) - 1; last < 1 || w.kinds[1][0] != kindSample || w.kinds[1][last] != kindEvent {
			t.Errorf("written at 80 ms: kinds %v, want samples and the event after them", w.kinds[1])
		}
	})
}

func TestSlowReaderLosesFramesAndIsToldSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(start)) }
		lib := sim.NewLibrary(sim.Waves{Count: 8}, sim.Options{}, now)
		framesR, framesW := io.Pipe()
		stdinR, stdinW := io.Pipe()
		done := make(chan error)
		go func() {
			done <- Serve(t.Context(), func() (nvml.Library, error) { return lib, nil }, nvml.DefaultConfig(), framesW, stdinR, now)
		}()
		time.Sleep(5 * time.Minute) // nobody reads
		read := make(chan error)
		var dropped []timeline.Event
		go func() {
			f := newFrameReader(framesR)
			for {
				k, payload, err := f.next()
				if err != nil {
					read <- err
					return
				}
				if e, err := decodeJSON[timeline.Event](payload); k == kindEvent && err == nil && e.Kind == timeline.EventDropped {
					dropped = append(dropped, e)
				}
			}
		}()
		time.Sleep(5 * time.Second)
		_ = stdinW.Close() // the agent goes
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		_ = framesW.Close()
		if err := <-read; !errors.Is(err, io.EOF) {
			t.Errorf("read: %v, want whole frames to the end", err)
		}
		if len(dropped) == 0 {
			t.Error("no word of what was dropped")
		}
	})
}

func TestHelperEndsInTimeWhileACallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		stdinR, _ := io.Pipe()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin := time.Now()
		now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(begin)) }
		err := Serve(ctx, func() (nvml.Library, error) { <-hang; return nil, nvml.ErrDriver }, nvml.DefaultConfig(), io.Discard, stdinR, now)
		if took := time.Since(begin) - 10*time.Second; !errors.Is(err, ErrStuck) || took > 5*time.Second {
			t.Errorf("serve: %v after %v, want stuck within 5 s", err, took)
		}
		close(hang)
		synctest.Wait()
	})
}

func TestHelperIsFoundBesideTheAgent(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", t.TempDir())
	if _, err := Find(dir); err == nil || !strings.Contains(err.Error(), HelperName) {
		t.Errorf("find: %v, want an error that names it", err)
	}
	path := filepath.Join(dir, HelperName)
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if have, err := Find(dir); err != nil || have != path {
		t.Errorf("find: %q, %v; want %q", have, err, path)
	}
	t.Setenv("PATH", dir)
	if have, err := Find(t.TempDir()); err != nil || have != path {
		t.Errorf("find on the search path: %q, %v; want %q", have, err, path)
	}
}

func TestLoaderVariableIsCleaned(t *testing.T) {
	have := CleanEnv([]string{"A=1", "LD_BIND_NOW=1", "LD_BIND_NOW=", "B=LD_BIND_NOW=2"})
	if diff := cmp.Diff([]string{"A=1", "B=LD_BIND_NOW=2"}, have); diff != "" {
		t.Errorf("environment (-want +have):\n%s", diff)
	}
}

func TestLocalSourceAndProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		now := func() timeline.Instant { return timeline.Instant(time.Hour + time.Since(begin)) }
		lib := sim.NewLibrary(sim.Waves{Count: 3}, sim.Options{}, now)
		l := NewLocal(lib, nvml.DefaultConfig(), now)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		r := &record{}
		if err := l.Run(ctx, r); err != nil {
			t.Fatal(err)
		}
		if len(r.gpus) != 1 || len(r.gpus[0]) != 3 || len(r.windows(2, timeline.DRAMUtil)) < 20 || len(l.Stats().GPUs) != 3 {
			t.Errorf("gpus %v, %d windows of the last", r.gpus, len(r.windows(2, timeline.DRAMUtil)))
		}
		found, err := Probe(t.Context(), lib, nvml.DefaultConfig(), now)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.GPUs) != 3 || len(found.Capabilities) != 3*(timeline.NumCounters+2) || len(found.Updates) < 3 || len(found.Inventory) != 3 || len(found.Latency) != 3*nvml.NumCalls {
			t.Errorf("found %d gpus, %d states, %d latencies", len(found.GPUs), len(found.Capabilities), len(found.Latency))
		}
	})
}
