// Command offline writes a day of eight GPUs as a recording and, value for value, as Parquet files, so that `tpotscope
// report` and a database can be asked the same question about the same data.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

const (
	window = 110 * time.Millisecond // as the agent samples by default
	origin = timeline.Instant(time.Hour)
	bound  = 40 // tokens a request, on average
)

type options struct {
	dir      string
	requests int
	gpus     int
	over     time.Duration
	tokens   bool
	seed     uint64
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "folder to write recording/ and the Parquet files into")
	flag.IntVar(&o.requests, "requests", 1_000_000, "number of requests")
	flag.IntVar(&o.gpus, "gpus", 8, "number of GPUs, each of an engine of its own")
	flag.DurationVar(&o.over, "for", 24*time.Hour, "time they cover")
	flag.BoolVar(&o.tokens, "tokens", false, "write each token too, about 40 a request")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of all that is drawn")
	flag.Parse()
	if err := write(o); err != nil {
		fmt.Fprintln(os.Stderr, "offline:", err)
		os.Exit(1)
	}
}

func write(o options) error {
	if o.dir == "" || o.requests < 1 || o.gpus < 1 || o.over < time.Second {
		return errors.New("-dir is needed, and at least one request, one gpu and one second")
	}
	gpus, targets := site(o.gpus)
	w, err := record.Create(filepath.Join(o.dir, "recording"), record.Meta{
		Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Host: "bench", BootID: "bench", GPUs: gpus, Targets: targets,
		Simulated: true, Note: "made up for a benchmark",
	}, record.Options{MaxBytes: -1})
	if err != nil {
		return err
	}
	t, err := newTables(o.dir)
	if err != nil {
		return errors.Join(err, w.Close())
	}
	d := &day{o: o, w: w, t: t, rng: rand.New(rand.NewPCG(o.seed, 1)), at: make([]time.Duration, o.gpus)}
	d.play()
	return errors.Join(w.Close(), t.close(), t.err)
}

// site returns GPUs and one engine for each.
func site(n int) ([]timeline.GPU, []timeline.Target) {
	gpus, targets := make([]timeline.GPU, n), make([]timeline.Target, n)
	for i := range n {
		gpus[i] = timeline.GPU{
			UUID: "GPU-" + strconv.Itoa(i), Name: "NVIDIA H100 80GB HBM3", Index: i, MemoryBytes: 80 << 30, BusWidthBits: 5120, SMs: 132,
			MaxSMClockHz: 1980e6, MaxMemClockHz: 2619e6, PowerLimitW: 700, DefaultLimitW: 700, GPM: true, Simulated: true,
		}
		targets[i] = timeline.Target{
			Name: "engine-" + strconv.Itoa(i), GPUs: []string{gpus[i].UUID}, Model: "Llama-3.1-8B", DType: "bf16", TP: 1,
		}
	}
	return gpus, targets
}

// day plays requests and windows in order of time.
type day struct {
	o      options
	w      *record.Writer
	t      *tables
	rng    *rand.Rand
	at     []time.Duration // of each GPU's next window
	ended  []timeline.Request
	events []timeline.TokenEvent
}

func (d *day) play() {
	arrivals := make([]time.Duration, d.o.requests)
	for i := range arrivals {
		arrivals[i] = time.Duration(d.rng.Float64() * float64(d.o.over-time.Second))
	}
	slices.Sort(arrivals)
	next := 0
	for second := time.Duration(0); second < d.o.over; second += time.Second {
		end := second + time.Second
		d.w.AddAnchor(timeline.Anchor{Mono: origin.Add(second), Real: 1_767_225_600e9 + int64(second), Boot: int64(origin.Add(second)), Width: time.Microsecond, BootID: "bench"})
		for g := range d.at {
			d.windows(g, end)
		}
		for ; next < len(arrivals) && arrivals[next] < end; next++ {
			d.request(uint64(next+1), arrivals[next])
		}
		d.until(origin.Add(end))
	}
	d.until(math.MaxInt64)
}

// windows writes one GPU's windows that end before end.
func (d *day) windows(gpu int, end time.Duration) {
	for ; d.at[gpu]+window <= end; d.at[gpu] += window {
		wave := 0.5 + 0.5*math.Sin(2*math.Pi*d.at[gpu].Hours()/24+float64(gpu))
		s := timeline.Sample{GPU: gpu, Over: timeline.Span{Start: origin.Add(d.at[gpu]), End: origin.Add(d.at[gpu] + window)}, Slack: 20_000}
		dram := 0.4 + 0.3*wave + 0.05*d.rng.Float64()
		s.Put(timeline.GraphicsUtil, min(1, dram+0.2))
		s.Put(timeline.SMUtil, min(1, dram+0.1))
		s.Put(timeline.TensorUtil, 0.1*dram)
		s.Put(timeline.DRAMUtil, dram)
		d.w.AddSample(&s)
		d.t.window(&s)
	}
}

// request draws one request, and its tokens if they are wanted.
func (d *day) request(ref uint64, sent time.Duration) {
	gpu := d.rng.IntN(d.o.gpus)
	n := 2 + int(d.rng.ExpFloat64()*(bound-2))
	tpot := time.Duration((8 + 4*d.rng.Float64()) * float64(time.Millisecond))
	r := timeline.Request{
		Ref: ref, Target: "engine-" + strconv.Itoa(gpu), Streaming: true, Client: "proxy", Operation: "chat", HTTPStatus: 200, Finish: "stop",
		Sent: origin.Add(sent), OutputTokens: n, Counted: timeline.CountIDs, FirstTokens: 1, Events: n, PromptTokens: 200, PromptKnown: true, Choices: 1,
	}
	r.Head = r.Sent.Add(20 * time.Millisecond)
	r.First = r.Sent.Add(50 * time.Millisecond)
	r.Last = r.First.Add(time.Duration(n-1) * tpot)
	r.Done = r.Last.Add(time.Millisecond)
	d.w.AddOpen(&r)
	d.ended = append(d.ended, r)
	d.t.request(gpu, &r)
	for i := 0; d.o.tokens && i < n; i++ {
		d.events = append(d.events, timeline.TokenEvent{
			Ref: ref, At: r.First.Add(time.Duration(i) * tpot), Tokens: 1, Source: timeline.CountIDs, Kind: timeline.KindContent,
		})
	}
}

// until writes the tokens that came and the requests that ended before end, in order.
func (d *day) until(end timeline.Instant) {
	byTime := func(a, b timeline.TokenEvent) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Ref, b.Ref)) }
	slices.SortFunc(d.events, byTime)
	n := 0
	for ; n < len(d.events) && d.events[n].At < end; n++ {
		d.w.AddToken(d.events[n])
	}
	d.events = append(d.events[:0], d.events[n:]...)
	slices.SortFunc(d.ended, func(a, b timeline.Request) int { return cmp.Or(cmp.Compare(a.Done, b.Done), cmp.Compare(a.Ref, b.Ref)) })
	n = 0
	for ; n < len(d.ended) && d.ended[n].Done < end; n++ {
		d.w.AddRequest(&d.ended[n])
	}
	d.ended = append(d.ended[:0], d.ended[n:]...)
}
