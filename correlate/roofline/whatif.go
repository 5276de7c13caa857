package roofline

import (
	"fmt"
	"math"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/hardware"
)

// WhatIf is the same step with one thing changed.
type WhatIf struct {
	What            string   `json:"what"`
	Bytes           float64  `json:"bytes_per_step"`
	FloorS          float64  `json:"tpot_floor_s"`
	ExpectedS       float64  `json:"tpot_expected_s"`
	Change          float64  `json:"tpot_change"` // of the expected time; -0.1 is a tenth less
	TokensPerSecond float64  `json:"tokens_per_second"`
	USDPerMillion   *float64 `json:"usd_per_million_output_tokens,omitempty"`
	Fits            bool     `json:"fits"`
}

// figures are those of one question.
func (q *Question) figures(m *Model) WhatIf {
	st, _ := q.step()
	c := m.Cost(st, q.rates(m, st))
	tokens := q.tokensPerStep()
	w := WhatIf{Bytes: c.Bytes(), FloorS: m.Floor(st) / tokens, ExpectedS: c.Seconds / tokens, Fits: m.memory(*q).Fits}
	w.TokensPerSecond = q.Batch / w.ExpectedS
	if q.HourUSD > 0 {
		usd := q.HourUSD * float64(m.tp) / 3600 / w.TokensPerSecond * 1e6
		w.USDPerMillion = &usd
	}
	return w
}

// whatIf returns the step with one thing changed at a time. What cannot be changed is left out.
func (q *Question) whatIf(base WhatIf) []WhatIf {
	out := []WhatIf{}
	try := func(what string, change func(*Question)) {
		other := *q
		change(&other)
		if other.validate() != nil {
			return
		}
		m, err := other.model()
		if err != nil {
			return
		}
		w := other.figures(m)
		w.What, w.Change = what, w.ExpectedS/base.ExpectedS-1
		out = append(out, w)
	}
	q.tryFormats(try)
	try(fmt.Sprintf("batch %g", 2*q.Batch), func(o *Question) { o.Batch *= 2 })
	if q.Batch >= 2 {
		half := math.Floor(q.Batch / 2)
		try(fmt.Sprintf("batch %g", half), func(o *Question) { o.Batch = half })
	}
	tp := 2 * max(1, q.Setup.TP)
	try(fmt.Sprintf("tp %d", tp), func(o *Question) {
		o.Setup.TP = tp
		if o.Draft != nil {
			draft := *o.Draft
			draft.TP = tp
			o.Draft = &draft
		}
	})
	if q.Other != nil {
		try("on "+q.Other.Alias(), func(o *Question) {
			o.Setup.GPU, o.Eta, o.SMClockHz = *q.Other, q.OtherEta, 0
			if o.Draft != nil {
				draft := *o.Draft
				draft.GPU = *q.Other
				o.Draft = &draft
			}
			o.HourUSD = 0 // its price is another
		})
	}
	if q.Drafts > 0 {
		try("no speculation", func(o *Question) { o.Drafts, o.Draft = 0, nil })
	} else if q.TryDrafts > 0 {
		try(fmt.Sprintf("%g drafts at %.2g", q.TryDrafts, q.TryAccepted), func(o *Question) { o.Drafts, o.Acceptance = q.TryDrafts, q.TryAccepted })
	}
	try(fmt.Sprintf("context %g", 2*q.Context), func(o *Question) { o.Context *= 2 })
	if q.LowClockHz > 0 {
		try(fmt.Sprintf("SM at %.0f MHz", q.LowClockHz/1e6), func(o *Question) { o.SMClockHz = q.LowClockHz })
	}
	return out
}

// tryFormats tries narrower formats, and the 16-bit one where the format is as narrow as any.
func (q *Question) tryFormats(try func(string, func(*Question))) {
	named := func(name string, use func(*Question, hardware.DType)) func(*Question) {
		return func(o *Question) {
			if d, err := hardware.LookupDType(name); err == nil {
				use(o, d)
			}
		}
	}
	cache := func(o *Question, d hardware.DType) { o.Setup.KV = d }
	weights := func(o *Question, d hardware.DType) { o.Setup.Weights = d }
	if q.Setup.KV.Bits > 8 {
		try("kv fp8", named("fp8", cache))
	} else {
		try("kv bf16", named("bf16", cache))
	}
	switch bits := q.Setup.Weights.Bits; {
	case bits > 9:
		try("weights fp8", named("fp8", weights))
		try("weights w4", named("awq", weights))
	case bits > 5:
		try("weights w4", named("awq", weights))
		try("weights bf16", named("bf16", weights))
	default:
		try("weights fp8", named("fp8", weights))
		try("weights bf16", named("bf16", weights))
	}
}

// say fills in what is assumed, what the figures leave out, and what cannot run as asked.
func (a *Answer) say(q Question, m *Model) {
	assume := func(is bool, format string, args ...any) {
		if is {
			a.Assumed = append(a.Assumed, fmt.Sprintf(format, args...))
		}
	}
	g := m.gpu
	assume(a.Peaks.BandwidthAssumed, "bandwidth of %s: sheets differ", g.ShortName())
	assume(g.Uncertain("BusWidthBits") || g.Uncertain("MaxMemClockHz"), "bandwidth of %s from clock and bus: public readings differ", g.ShortName())
	assume(g.Uncertain("Rates."+strings.ToUpper(a.Peaks.Arithmetic)), "%s rate of %s: sheets differ", a.Peaks.Arithmetic, g.ShortName())
	assume(g.Uncertain("RateClockHz"), "SM clock that the rates of %s hold at", g.ShortName())
	assume(a.Eta.BandwidthOrigin == "assumed", "achievable bandwidth, %.2f of peak", a.Eta.Bandwidth)
	assume(a.Eta.TensorOrigin == "assumed", "achievable tensor rate, %.2f of peak", a.Eta.Tensor)
	assume(m.weights.Assumed, "width of %s, which differs between files", m.weights.Name)
	assume(m.spec.MoE(), "experts: tokens are routed independently; those of one token are the floor")
	assume(m.tp > 1, "collectives: 12.9 us each and 0.41 of the links' rate, as on four H100")
	assume(q.Drafts > 0, "each draft is accepted with probability %.2g, whatever came before", q.Acceptance)
	assume(q.Drafts <= 0 && q.TryDrafts > 0, "%g drafts at %.2g: that acceptance, and drafts that take no time", q.TryDrafts, q.TryAccepted)
	assume(true, "launches and host, in no figure: %.0f to %.0f us a layer", 1e6*a.Launch.Low/float64(max(1, m.spec.Layers)), 1e6*a.Launch.High/float64(max(1, m.spec.Layers)))
	if q.Drafts > 0 && q.Draft == nil {
		a.Notes = append(a.Notes, "the draft model is not known: its time is in no figure (--draft-model)")
	}
	if n := len(q.Captures); n > 0 && q.Prompt == 0 {
		if st, _ := q.step(); st.Padded == 0 {
			a.Notes = append(a.Notes, "the batch is above the largest captured size: it runs without a graph, and launches cost more")
		}
	}
	if n := m.KVCopies(); n > 1 {
		why := fmt.Sprintf("%d heads of keys and values", m.spec.KVHeads)
		if m.spec.MLA() {
			why = "latent attention has no heads to split"
		}
		a.Notes = append(a.Notes, fmt.Sprintf("each GPU reads 1/%.3g of the cache, not 1/%d: %s", float64(m.tp)/n, m.tp, why))
	}
	if _, ok := g.RateOf(m.weights); !ok {
		a.Notes = append(a.Notes, fmt.Sprintf("%s has no %s arithmetic: weights are widened, and multiplied in bf16", g.ShortName(), m.weights.Math))
	}
	if mem := a.Memory; !mem.Fits {
		a.Warning = append(a.Warning, fmt.Sprintf("does not fit: %.1f GB of weights and %.1f GB of cache, and %.1f GB can be used on %d x %s",
			mem.Weights/1e9, mem.KV/1e9, mem.Usable/1e9, m.tp, g.ShortName()))
	}
}
