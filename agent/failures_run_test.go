package agent_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// said is what one failure is recognised by, in each place in which it has to stand.
type said struct {
	health string // in /healthz
	log    string // in the log that people see
	kind   timeline.EventKind
	event  string                   // in an event of that kind in the recording
	metric func(*scene, string) any // from /metrics: not nil, what says it
}

// outcome is one row of the table.
type outcome struct {
	Name      string
	Detected  time.Duration // after the cause
	Gone      time.Duration // after the cause, the GPU's series were
	Where     []string
	Recovered string
	Lines     int // in the log, from the cause on
	Slowest   time.Duration
	Streams   int
	Tokens    int
	Stopped   time.Duration
	Before    string
	After     string
}

const (
	rowVar = "TPOTSCOPE_FAILURE"  // the one failure that a child process runs
	binVar = "TPOTSCOPE_BINARIES" // what was built for it
	allVar = "TPOTSCOPE_FAILURES" // "all": those too that take minutes
	rowTag = "FAILURE "
)

// TestNothingTheDriverDoesTakesTheAgentDown runs each failure in a process of its own, so that what is left behind can be
// counted, and prints the table of all.
func TestNothingTheDriverDoesTakesTheAgentDown(t *testing.T) {
	bin := buildBinaries(t)
	packed, err := json.Marshal(bin)
	must(t, err)
	var rows []failure
	left := 0
	for _, f := range failures() {
		if f.long && os.Getenv(allVar) != "all" {
			left++
			continue
		}
		rows = append(rows, f)
	}
	outs, errs := make([]string, len(rows)), make([]error, len(rows))
	var g errgroup.Group
	g.SetLimit(6)
	for i, f := range rows {
		g.Go(func() error {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFailure$", "-test.timeout=5m", "-test.v")
			cmd.Env = append(os.Environ(), rowVar+"="+f.name, binVar+"="+string(packed))
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			errs[i] = cmd.Run()
			outs[i] = out.String()
			return nil
		})
	}
	must(t, g.Wait())
	var table []outcome
	for i, f := range rows {
		t.Run(f.name, func(t *testing.T) {
			for line := range strings.Lines(outs[i]) {
				if text, ok := strings.CutPrefix(line, rowTag); ok {
					var o outcome
					must(t, json.Unmarshal([]byte(text), &o))
					table = append(table, o)
				}
			}
			if errs[i] != nil {
				t.Errorf("%v\n%s", errs[i], outs[i])
			}
		})
	}
	t.Logf("\n%s", tabled(table))
	if left > 0 {
		t.Logf("%d failures that take long were left out: set %s=all to run them too", left, allVar)
	}
}

func tabled(rows []outcome) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "failure\tsaid after\tseries gone after\tsaid in\tlog lines\trecovered after\tslowest answer\ttokens\tend\tleft behind")
	for _, r := range rows {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%v\t%d\t%v\t%s -> %s\n", r.Name, shortly(r.Detected), shortly(r.Gone), strings.Join(r.Where, ","), r.Lines,
			r.Recovered, r.Slowest.Round(time.Millisecond), r.Tokens, r.Stopped.Round(10*time.Millisecond), r.Before, r.After)
	}
	_ = w.Flush() // into memory
	return b.String()
}

func shortly(d time.Duration) string {
	if d < 0 {
		return "-"
	}
	return d.Round(10 * time.Millisecond).String()
}

// TestFailure is one failure in a process of its own.
func TestFailure(t *testing.T) {
	name := os.Getenv(rowVar)
	if name == "" {
		t.Skip("runs only as a child of TestNothingTheDriverDoesTakesTheAgentDown")
	}
	var bin binaries
	must(t, json.Unmarshal([]byte(os.Getenv(binVar)), &bin))
	all := failures()
	at := slices.IndexFunc(all, func(f failure) bool { return f.name == name })
	if at < 0 {
		t.Fatalf("there is no failure %q", name)
	}
	f := &all[at]
	s := newScene(t, bin, max(f.gpus, 1), f.noGPM)
	o := s.run(f)
	text, err := json.Marshal(o)
	must(t, err)
	fmt.Println(rowTag + string(text))
}

// run lets the failure happen to an agent, waits until it is over, and holds the agent to what it promises.
func (s *scene) run(f *failure) *outcome {
	t := s.t
	o := &outcome{Name: f.name, Detected: -1, Gone: -1, Recovered: "-"}
	if f.before != nil {
		f.before(s)
	}
	s.began = time.Now()
	s.start()
	ended := false
	defer func() {
		if !ended { // the test failed on the way
			s.sends.end()
			s.seen.end()
			s.ag.cancel()
			<-s.ag.done //nolint:errcheck // it failed already
			t.Logf("the log:\n%s", s.ag.log.text())
		}
	}()
	from, counted := 0, make([]float64, len(s.uuids))
	if f.cause != nil {
		until(t, 30*time.Second, "all GPUs to be shown", func() bool { return s.healthy(f, counted) })
		from = len(s.ag.log.text())
		s.began = time.Now()
		f.cause(s)
	}
	s.detect(f, o, from)
	if f.then != nil {
		f.then(s)
	}
	s.recover(f, o, counted)
	o.Lines = s.countLines(f, from)
	s.finish(f, o)
	ended = true
	if t.Failed() {
		t.Logf("the log:\n%s", s.ag.log.text())
	}
	return o
}

// healthy reports whether every GPU is shown and read, and notes what their counters stand at.
func (s *scene) healthy(f *failure, counted []float64) bool {
	page, health := s.seen.last()
	for i, uuid := range s.uuids {
		v, ok := value(page, s.counter(), uuid)
		if !ok || v <= counted[i] {
			return false
		}
	}
	if !strings.Contains(health, `"status": "ok"`) {
		return false
	}
	for i, uuid := range s.uuids {
		counted[i], _ = value(page, s.counter(), uuid)
	}
	return true
}

// counter is the series that grows while a GPU is read.
func (s *scene) counter() string {
	if s.world.NoGPM {
		return "tpotscope_gpu_energy_joules_total"
	}
	return "tpotscope_gpu_covered_seconds_total"
}

// detect waits until the failure stands everywhere it has to.
func (s *scene) detect(f *failure, o *outcome, from int) {
	t := s.t
	within := max(f.within, 5*time.Second)
	until(t, within, "health to say "+f.said.health, func() bool {
		_, health := s.seen.last()
		return strings.Contains(health, f.said.health)
	})
	o.Detected = time.Since(s.began)
	o.Where = append(o.Where, "health")
	if len(f.gone) > 0 {
		until(t, 2*time.Second, fmt.Sprintf("the series of GPUs %v to be gone", f.gone), func() bool {
			page, _ := s.seen.last()
			return !slices.ContainsFunc(f.gone, func(gpu int) bool { return shows(page, s.uuids[gpu]) })
		})
		o.Gone = time.Since(s.began)
	}
	if f.said.log != "" {
		until(t, 3*time.Second, "the log to say "+f.said.log, func() bool {
			return strings.Contains(strings.Join(s.told(from), "\n"), f.said.log)
		})
		o.Where = append(o.Where, "log")
	}
	if f.said.metric != nil {
		until(t, 2*within, "a metric to say it", func() bool {
			page, _ := s.seen.last()
			return f.said.metric(s, page) != nil
		})
		page, _ := s.seen.last()
		o.Where = append(o.Where, fmt.Sprint(f.said.metric(s, page)))
	}
	if len(f.stay) > 0 {
		s.othersGoOn(f)
	}
}

// othersGoOn makes sure that the GPUs that nothing happened to are read and shown.
func (s *scene) othersGoOn(f *failure) {
	page, _ := s.seen.last()
	for _, gpu := range f.stay {
		was, ok := value(page, s.counter(), s.uuids[gpu])
		if !ok {
			s.t.Errorf("GPU %d is not shown any more, though nothing happened to it", gpu)
			continue
		}
		until(s.t, 5*time.Second, fmt.Sprintf("GPU %d to go on", gpu), func() bool {
			page, _ := s.seen.last()
			v, ok := value(page, s.counter(), s.uuids[gpu])
			return ok && v > was
		})
	}
}

// recover ends the cause and waits until all is as before.
func (s *scene) recover(f *failure, o *outcome, counted []float64) {
	if f.heal == nil {
		o.Recovered = f.stays
		return
	}
	f.heal(s)
	healed := time.Now()
	if f.stays != "" {
		o.Recovered = f.stays
		return
	}
	before := slices.Clone(counted)
	for i := range counted {
		counted[i] = math.Inf(1) // has to be shown, and then to grow
	}
	until(s.t, max(f.recover, 30*time.Second), "all GPUs to be read and shown again", func() bool {
		if s.healthy(f, counted) {
			return true
		}
		page, _ := s.seen.last()
		for i, uuid := range s.uuids {
			if v, ok := value(page, s.counter(), uuid); ok {
				counted[i] = min(counted[i], v)
			}
		}
		return false
	})
	o.Recovered = shortly(time.Since(healed))
	for i := range counted {
		if counted[i] < before[i] {
			s.t.Errorf("the counter of GPU %d went back from %v to %v", i, before[i], counted[i])
		}
	}
	until(s.t, 15*time.Second, "no state to be left of the failure", func() bool {
		_, health := s.seen.last()
		return !slices.ContainsFunc([]string{"timeout", "lost", "stale", "untrusted", "no_permission"}, func(state string) bool {
			return strings.Contains(health, `"state": "`+state+`"`)
		})
	})
}

// countLines counts what people see in the log from the cause on, but for what the engine's side says, for bursts, and for
// the first listing of the GPUs.
func (s *scene) countLines(f *failure, from int) int {
	told := slices.DeleteFunc(s.told(from), func(line string) bool {
		return strings.Contains(line, "msg=engine") || strings.Contains(line, `msg="engine`) || strings.Contains(line, `msg="burst`) ||
			strings.Contains(line, `msg="gpus are read"`)
	})
	most := f.lines
	if most == 0 {
		most = 3
	}
	if len(told) > most {
		s.t.Errorf("the log has %d lines of the failure, want at most %d:\n%s", len(told), most, strings.Join(told, "\n"))
	}
	return len(told)
}

// finish stops the agent and looks at what it did and left.
func (s *scene) finish(f *failure, o *outcome) {
	t := s.t
	s.sends.end()
	s.seen.end()
	began := time.Now()
	s.ag.cancel()
	if err := <-s.ag.done; err != nil {
		t.Errorf("Run() = %v, want no error after a stop that was asked for", err)
	}
	if o.Stopped = time.Since(began); o.Stopped > 5*time.Second {
		t.Errorf("the end took %v, want at most 5 s", o.Stopped)
	}
	if left := children(t); len(left) > 0 && !f.abandons {
		t.Errorf("processes are left behind: %q", left)
	}
	// The simulated driver refuses to be closed while something of it is in use; the helper would say so.
	if log := s.ag.log.text(); strings.Contains(log, "close driver") || strings.Contains(log, "shut down") {
		t.Error("the driver was not closed in order")
	}
	if len(s.seen.failed) > 0 || s.seen.slowest > time.Second+5*s.seen.late || s.seen.asked == 0 {
		t.Errorf("asked %d times, slowest %v on a machine that is %v late, failed %q: the doors have to answer within a second",
			s.seen.asked, s.seen.slowest, s.seen.late, s.seen.failed)
	}
	o.Slowest = s.seen.slowest
	s.compareTraffic(o)
	s.compareRecording(f, o)
	s.compareCounts(o)
}
