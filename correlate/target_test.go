package correlate_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

func TestTargetsThatShareAGPUAreForeignToEachOther(t *testing.T) {
	e := newEngine(timeline.Target{}, h100())
	both := []timeline.Target{{Name: "vllm", GPUs: []string{uuid}}, {Name: "other", GPUs: []string{uuid}}}
	e.SetTargets(both)
	var out correlate.Output
	memoryBound().feed(e, &out, 10*time.Second)
	i := slices.IndexFunc(out.Cells, func(c correlate.Cell) bool { return c.Target == "vllm" && c.Span.Start > t0.Add(4*time.Second) })
	if v := &out.Cells[i].Verdict; v.Reason != verdict.ReasonForeign {
		t.Errorf("two targets on a GPU: got %s (%s), want undetermined (%s)", v.Label, v.Reason, verdict.ReasonForeign)
	}
	e = newEngine(timeline.Target{}, h100())
	e.SetTargets(both)
	e.SetTargets(both[:1])
	out.Reset()
	memoryBound().feed(e, &out, 10*time.Second)
	if v := &middle(out).Verdict; v.Label != timeline.Memory {
		t.Errorf("one of them left: got %s (%s), want memory", v.Label, v.Reason)
	}
}

func TestAGPUListedTwiceIsOne(t *testing.T) {
	e := newEngine(timeline.Target{GPUs: []string{uuid, uuid}}, h100())
	var out correlate.Output
	memoryBound().feed(e, &out, 10*time.Second)
	if c := middle(out); len(c.PerGPU) != 1 || c.Verdict.Label != timeline.Memory {
		t.Errorf("got %d GPUs, %s (%s); want one, memory", len(c.PerGPU), c.Verdict.Label, c.Verdict.Reason)
	}
}

// TestWithoutAProbeBytesAreChecked holds the byte model to the engine's own counts: a verdict that needs no probe needs
// its other checks all the more.
func TestWithoutAProbeBytesAreChecked(t *testing.T) {
	s := memoryBound()
	s.seen = 0
	target := timeline.Target{Model: "Llama-3.1-8B", DType: "bf16"}
	fits := middle(run(t, s, target, 20*time.Second)).Verdict
	if fits.Label != timeline.Memory || fits.Ceiling != timeline.High {
		t.Errorf("16 GB a step of 8 ms: got %s, ceiling %s (%v), want memory, high", fits.Label, fits.Ceiling, fits.Caps)
	}
	s.tpot = 4 * time.Millisecond // twice the steps, and no more traffic
	if v := middle(run(t, s, target, 20*time.Second)).Verdict; v.Ceiling != timeline.Medium {
		t.Errorf("half of the bytes that the steps need: ceiling %s (%v), want medium", v.Ceiling, v.Caps)
	}
}

// TestTheProbesContextIsThatOfTheCell holds the context of a cell to the tokens that had come by then, not to those that
// have come when it is closed.
func TestTheProbesContextIsThatOfTheCell(t *testing.T) {
	s := memoryBound()
	s.context, s.length = 0, 1000
	out := run(t, s, timeline.Target{}, 20*time.Second)
	for _, i := range []int{5, 10, 15} {
		c := &out.Cells[i]
		near(t, "context", c.ContextSum.Value, 8*(1000+125*c.Span.Mid().Sub(t0).Seconds()), 8*5)
	}
}

func TestOneInstanceOfACutGPUMapsItself(t *testing.T) {
	whole, instance, second := h100(), h100(), h100()
	whole.MIG = true
	instance.UUID, instance.MIG, instance.ParentUUID = "MIG-1", true, whole.UUID
	second.UUID, second.MIG, second.ParentUUID = "MIG-2", true, whole.UUID
	s := memoryBound()
	for _, tt := range []struct {
		name string
		gpus []timeline.GPU
		want []string
	}{
		{"the device is not counted beside its instance", []timeline.GPU{whole, instance}, []string{"MIG-1"}},
		{"of two instances neither is taken, nor is the device", []timeline.GPU{whole, instance, second}, nil},
		{"two devices that are no instances stay apart", []timeline.GPU{whole, {UUID: "GPU-2"}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngine(timeline.Target{}) // that names no GPU
			e.SetGPUs(tt.gpus)
			s.gpus = len(tt.gpus)
			var out correlate.Output
			s.feed(e, &out, 10*time.Second)
			var got []string
			for i := range middle(out).PerGPU {
				got = append(got, middle(out).PerGPU[i].UUID)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("mapped to %v, want %v", got, tt.want)
			}
		})
	}
	e := newEngine(timeline.Target{})
	e.SetGPUs([]timeline.GPU{whole, instance})
	s.gpus = 1 // the instance is listed and was taken away
	var out correlate.Output
	s.feed(e, &out, 10*time.Second)
	if c := middle(out); len(c.PerGPU) != 1 || c.PerGPU[0].UUID != whole.UUID {
		t.Errorf("mapped to %v, want the device whose instance is not there", c.PerGPU)
	}
}
