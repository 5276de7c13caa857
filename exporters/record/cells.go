package record

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// cellRow is a row of the cells file: a cell of a target, or the part that one GPU has in the cell before it. A GPU's
// row fills of the cell only what a GPU has.
type cellRow struct {
	correlate.Cell

	gpu       int // position in the list of GPUs, or NoGPU for the target's own row
	throttled map[string]float64
}

func (r *cellRow) whole() bool { return r.gpu == timeline.NoGPU }

// cellRows appends the rows of c.
func cellRows(dst []cellRow, c *correlate.Cell) []cellRow {
	dst = append(dst, cellRow{Cell: *c, gpu: timeline.NoGPU})
	dst[len(dst)-1].PerGPU = nil
	for _, g := range c.PerGPU {
		dst = append(dst, cellRow{
			Cell: correlate.Cell{
				Target: c.Target, Span: c.Span,
				Counters: g.Counters, Windows: g.Windows, CoveredS: g.CoveredS, DRAMBytes: g.DRAMBytes,
			},
			gpu: g.GPU, throttled: g.ThrottledS,
		})
	}
	return dst
}

// perGPU returns what a GPU's row says.
func (r *cellRow) perGPU(gpus *gpuList) correlate.GPUCell {
	return correlate.GPUCell{
		GPU: r.gpu, UUID: gpus.uuid(r.gpu),
		Counters: r.Counters, Windows: r.Windows, CoveredS: r.CoveredS, DRAMBytes: r.DRAMBytes, ThrottledS: r.throttled,
	}
}

// measure is a column of cells that may be absent for a reason.
type measure struct {
	name string
	at   func(*cellRow) *timeline.Measure
	gpu  bool // GPUs have it too
}

func cellMeasures() []measure {
	type row = cellRow
	return []measure{
		{"window_tpot_s", func(r *row) *timeline.Measure { return &r.WindowTPOT }, false},
		{"batch", func(r *row) *timeline.Measure { return &r.Batch }, false},
		{"waiting", func(r *row) *timeline.Measure { return &r.Waiting }, false},
		{"output_tokens", func(r *row) *timeline.Measure { return &r.OutputTokens }, false},
		{"prompt_tokens", func(r *row) *timeline.Measure { return &r.PromptTokens }, false},
		{"context_tokens", func(r *row) *timeline.Measure { return &r.ContextSum }, false},
		{"kv_usage", func(r *row) *timeline.Measure { return &r.KVUsage }, false},
		{"preemptions", func(r *row) *timeline.Measure { return &r.Preemptions }, false},
		{"steps", func(r *row) *timeline.Measure { return &r.Steps }, false},
		{"engine_tpot_s", func(r *row) *timeline.Measure { return &r.EngineTPOT }, false},
		{"coverage", func(r *row) *timeline.Measure { return &r.Coverage }, false},
		{"dram_bytes", func(r *row) *timeline.Measure { return &r.DRAMBytes }, true},
		{"modelled_bytes", func(r *row) *timeline.Measure { return &r.ModelledBytes }, false},
	}
}

func cellTable(gpus *gpuList) *table[cellRow] {
	type row = cellRow
	measures := cellMeasures()
	columns := []column[row]{
		stringColumn("target", func(r *row) *string { return &r.Target }),
		gpuColumn("gpu_uuid", gpus, func(r *row) *int { return &r.gpu }),
	}
	columns = append(columns, spanColumns(func(r *row) *timeline.Span { return &r.Span })...)
	columns = append(columns,
		targetFloat("tokens", func(r *row) *float64 { return &r.Tokens }),
		targetFloat("active", func(r *row) *float64 { return &r.Active }),
		targetFloat("decoding", func(r *row) *float64 { return &r.Decoding }))
	for _, m := range measures {
		columns = append(columns, floatColumn(m.name,
			func(r *row) (float64, bool) { return m.at(r).Value, m.at(r).OK() && (m.gpu || r.whole()) },
			func(r *row, v float64) { *m.at(r) = timeline.Known(v) }))
	}
	columns = append(columns, absentColumn(measures),
		intColumn("windows", func(r *row) *int { return &r.Windows }),
		floatColumn("covered_s", func(r *row) (float64, bool) { return r.CoveredS, true }, func(r *row, v float64) { r.CoveredS = v }),
		targetFloat("throttled_s", func(r *row) *float64 { return &r.ThrottledS }),
		textColumn("throttled_by_reason_s",
			func(r *row) string { return spell(r.throttled) },
			func(r *row, s string) error { return json.Unmarshal([]byte(s), &r.throttled) }),
	)
	return &table[row]{
		kind: Cells,
		at:   func(r *row) timeline.Instant { return r.Span.End },
		init: func(r *row) {
			r.gpu = timeline.NoGPU
			for _, m := range measures {
				*m.at(r) = timeline.Absent("not recorded")
			}
		},
		columns: slices.Concat(columns, counterColumns(), verdictColumns()),
	}
}

// targetFloat stores a number that only a target's row has.
func targetFloat(name string, at func(*cellRow) *float64) column[cellRow] {
	return floatColumn(name, func(r *cellRow) (float64, bool) { return *at(r), r.whole() }, func(r *cellRow, v float64) { *at(r) = v })
}

// absentColumn stores the reasons of all measures that have no value, as a JSON object.
func absentColumn(measures []measure) column[cellRow] {
	return textColumn("absent",
		func(r *cellRow) string {
			why := map[string]string{}
			for _, m := range measures {
				if v := m.at(r); !v.OK() && (m.gpu || r.whole()) {
					why[m.name] = v.Why
				}
			}
			return spell(why)
		},
		func(r *cellRow, s string) error {
			var why map[string]string
			if err := json.Unmarshal([]byte(s), &why); err != nil {
				return fmt.Errorf("read reasons: %w", err)
			}
			for _, m := range measures {
				if w := why[m.name]; w != "" {
					*m.at(r) = timeline.Absent(w)
				}
			}
			return nil
		})
}

// spell returns m as JSON, its keys in order, and nothing for an empty map.
func spell[V any](m map[string]V) string {
	if len(m) == 0 {
		return ""
	}
	b, err := json.Marshal(m)
	if err != nil {
		return "" // a number that JSON cannot spell: no reason is better than no row
	}
	return string(b)
}

func counterColumns() []column[cellRow] {
	type row = cellRow
	var columns []column[row]
	for c := range timeline.Counter(timeline.NumCounters) {
		columns = append(columns,
			floatColumn(c.String(),
				func(r *row) (float64, bool) { return r.Counters[c].Value, r.Counters[c].OK() },
				func(r *row, v float64) { r.Counters[c].Value = v }),
			floatColumn(c.String()+"_covered_s",
				func(r *row) (float64, bool) { return r.Counters[c].CoveredS, r.Counters[c].OK() },
				func(r *row, v float64) { r.Counters[c].CoveredS = v }))
	}
	return columns
}

func verdictColumns() []column[cellRow] {
	type row = cellRow
	return []column[row]{
		boolColumn("decode", func(r *row) *bool { return &r.Decode }),
		stringColumn("label", func(r *row) *timeline.Label { return &r.Verdict.Label }),
		stringColumn("reason", func(r *row) *string { return &r.Verdict.Reason }),
		namedColumn("confidence", func(r *row) *timeline.Confidence { return &r.Verdict.Confidence }),
		targetFloat("share_memory", func(r *row) *float64 { return &r.Verdict.Shares.Memory }),
		targetFloat("share_compute", func(r *row) *float64 { return &r.Verdict.Shares.Compute }),
		targetFloat("share_launch", func(r *row) *float64 { return &r.Verdict.Shares.Launch }),
		targetFloat("share_host", func(r *row) *float64 { return &r.Verdict.Shares.Host }),
		targetFloat("share_other", func(r *row) *float64 { return &r.Verdict.Shares.Other }),
		targetFloat("roof_low", func(r *row) *float64 { return &r.Verdict.Roof.Low }),
		targetFloat("roof_high", func(r *row) *float64 { return &r.Verdict.Roof.High }),
		listColumn("overlays", func(r *row) *[]timeline.Overlay { return &r.Verdict.Overlays }),
		listColumn("caps", func(r *row) *[]string { return &r.Verdict.Caps }),
		namedColumn("evidence", func(r *row) *timeline.EvidenceLevel { return &r.Level }),
	}
}

// listColumn stores a list of short texts, one a line.
func listColumn[S ~string](name string, at func(*cellRow) *[]S) column[cellRow] {
	return textColumn(name,
		func(r *cellRow) string {
			lines := make([]string, len(*at(r)))
			for i, s := range *at(r) {
				lines[i] = string(s)
			}
			return strings.Join(lines, "\n")
		},
		func(r *cellRow, s string) error {
			for line := range strings.SplitSeq(s, "\n") {
				*at(r) = append(*at(r), S(line))
			}
			return nil
		})
}
