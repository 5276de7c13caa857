package correlate

import (
	"slices"

	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// target is a GPU group that serves one engine, and what is known of it that is not yet in a cell.
type target struct {
	spec    timeline.Target
	gpus    []int
	model   *roofline.Model
	scrapes scrapes
	bins    bins
	warm    int // requests finished since the engine started
	seen    []seen
	run     likeCells
	now     probed
	empty   int // cells in a row without anything
}

func newTarget(spec timeline.Target, _ Config) *target {
	return &target{spec: spec, scrapes: scrapes{ring: timeline.NewRing[scrape](maxScrapes)}}
}

// parallel is the number of GPUs that share each step.
func (t *target) parallel() int {
	if t.spec.TP > 0 {
		return t.spec.TP
	}
	return max(1, len(t.gpus))
}

// seen is the output of one cell by two observers.
type seen struct {
	probe, engine float64
	known         bool // the engine told
}

// probed is what the probe knows of one target in the cell that is being closed.
type probed struct {
	active     float64 // request-seconds
	decoding   float64
	edges      []edge
	level      timeline.EvidenceLevel
	clockBound float64
	coalesced  float64
	events     float64
	prompt     timeline.Measure // tokens whose prefill ended in the cell
	context    timeline.Measure // token-seconds
	requests   int
}

func (p *probed) reset() {
	*p = probed{edges: p.edges[:0], prompt: timeline.Known(0), context: timeline.Known(0)}
}

// edge is a moment at which the number of decoding requests changes by one.
type edge struct {
	at timeline.Instant
	by int32
	n  int32   // decoding from here on
	in float64 // request-seconds of decode before here
}

// take adds one request's part of the cell.
func (p *probed) take(r *request, cell timeline.Span) {
	if sec := r.flight(cell.End).Overlap(cell).Seconds(); sec > 0 {
		p.active += sec
		p.requests++
		p.level = max(p.level, levelOf(r.rec.Client))
	}
	d := r.decode(cell.End)
	if r.first != 0 || r.closed {
		p.prefilled(r, d, cell)
	}
	in := d.Intersect(cell)
	if in.Empty() {
		return
	}
	p.decoding += in.Duration().Seconds()
	p.edges = append(p.edges, edge{at: in.Start, by: 1}, edge{at: in.End, by: -1})
	p.clockBound = max(p.clockBound, r.rec.ClockBound.Seconds())
	p.events += float64(r.rec.Events)
	p.coalesced += float64(r.rec.Coalesced)
	switch {
	case !p.context.OK():
	case !r.rec.PromptKnown:
		p.context = timeline.Absent("prompt lengths are not known")
	default:
		p.context.Value += (float64(r.rec.PromptTokens) + r.tokens) * in.Duration().Seconds()
	}
}

// prefilled counts the prompt of a request whose first token came in the cell.
func (p *probed) prefilled(r *request, d, cell timeline.Span) {
	if !cell.Contains(d.Start) || !p.prompt.OK() {
		return
	}
	if !r.rec.PromptKnown {
		p.prompt = timeline.Absent("prompt lengths are not known")
		return
	}
	p.prompt.Value += float64(max(0, r.rec.PromptTokens-r.rec.CachedTokens))
}

// settle sorts the edges and integrates the number of decoding requests.
func (p *probed) settle() {
	slices.SortFunc(p.edges, func(a, b edge) int {
		if a.at != b.at {
			if a.at < b.at {
				return -1
			}
			return 1
		}
		return int(b.by - a.by)
	})
	var n int32
	var in float64
	for i := range p.edges {
		g := &p.edges[i]
		if i > 0 {
			in += float64(n) * g.at.Sub(p.edges[i-1].at).Seconds()
		}
		n += g.by
		g.n, g.in = n, in
	}
}

// decodingUntil returns the request-seconds of decode from the start of the cell to t.
func (p *probed) decodingUntil(t timeline.Instant) float64 {
	i, _ := slices.BinarySearchFunc(p.edges, t, func(e edge, t timeline.Instant) int {
		if e.at <= t {
			return -1
		}
		return 1
	})
	if i == 0 {
		return 0
	}
	g := p.edges[i-1]
	return g.in + float64(g.n)*t.Sub(g.at).Seconds()
}

// levelOf is the evidence that a kind of client gives.
func levelOf(client string) timeline.EvidenceLevel {
	switch client {
	case "tap", "capture":
		return timeline.L2
	case "span", "otlp":
		return timeline.L1
	}
	return timeline.L3
}

// coverage returns the probe's output over the engine's, over the newest cells in which the engine told.
func (t *target) coverage(now seen, cells int) timeline.Measure {
	t.seen = append(t.seen, now)
	if over := len(t.seen) - cells; over > 0 {
		t.seen = t.seen[:copy(t.seen, t.seen[over:])]
	}
	var probe, engine float64
	var told bool
	for _, s := range t.seen {
		if s.known {
			probe, engine, told = probe+s.probe, engine+s.engine, true
		}
	}
	switch {
	case !told:
		return timeline.Absent("the engine tells no output tokens")
	case engine <= 0:
		return timeline.Absent("the engine made no output tokens")
	}
	return timeline.Known(probe / engine)
}

// likeCells is the run of cells with one label that the newest cell belongs to.
type likeCells struct {
	cells []verdict.Timed
	at    int // length of the run when its verdict was worked out
	total int // cells in the run, also those that have left
	last  verdict.Verdict
}

// maxRun bounds the run; older cells leave it.
const maxRun = 64

// take adds a cell to the run, or starts one.
func (l *likeCells) take(v *verdict.Verdict, span timeline.Span) {
	if n := len(l.cells); n > 0 {
		last := &l.cells[n-1]
		if last.Verdict.Label != v.Label || last.Verdict.Mixed != v.Mixed || last.Over.End != span.Start {
			*l = likeCells{cells: l.cells[:0]}
		}
	}
	if len(l.cells) == maxRun {
		l.cells = l.cells[:copy(l.cells, l.cells[1:])]
	}
	l.cells = append(l.cells, verdict.Timed{Verdict: *v, Over: span})
	l.total++
}

// confidence returns that of the run. It is worked out when the run has grown by a quarter or by sixteen cells, not at
// every cell.
func (l *likeCells) confidence() timeline.Confidence {
	if len(l.cells) == 0 {
		return timeline.NoConfidence
	}
	if l.at == 0 || l.total >= l.at+min(16, 1+l.at/4) {
		l.last, l.at = verdict.Run(l.cells), l.total
	}
	return l.last.Confidence
}
