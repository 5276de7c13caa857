package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

func (a *app) exportCommand() *cobra.Command {
	var format, out string
	cmd := &cobra.Command{
		Use: "export RUN", GroupID: "data", Short: "one row a request, with its latencies and what bounded its decode", Args: cobra.ExactArgs(1),
		Long: `Export replays a recording and writes one row a request as JSON lines or CSV. A value that is missing says why in JSON and is
empty in CSV. No row holds any content. The recording's own files are Arrow streams, which most tools read as they are.`,
		Example: "  tpotscope export @last --format jsonl | jq 'select(.tpot_s > 0.05)'\n  tpotscope export @last --format csv -o requests.csv",
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "jsonl" && format != "csv" {
				return usage(cmd, fmt.Errorf("--format: %q is not one of jsonl, csv", format))
			}
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			dir, err := findRun(cfg.StateDir, args[0])
			if err != nil {
				return &exitStatus{exitUsage, err}
			}
			return a.export(cmd.Context(), dir, format, out)
		},
	}
	cmd.Flags().StringVar(&format, "format", "jsonl", "jsonl or csv")
	cmd.Flags().StringVarP(&out, "output", "o", "", "file to write (default: standard output)")
	return cmd
}

// export writes the requests of a recording.
func (a *app) export(ctx context.Context, dir, format, out string) (err error) {
	r, err := record.OpenReader(dir)
	if err != nil {
		return err
	}
	anchor, err := firstAnchor(r)
	if err != nil {
		return err
	}
	w := a.out
	if out != "" {
		f, err := os.OpenFile(out, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("write export: %w", err)
		}
		defer func() {
			if cerr := f.Close(); err == nil && cerr != nil {
				err = fmt.Errorf("write export: %w", cerr)
			}
		}()
		w = f
	}
	buffered := bufio.NewWriter(w)
	rows := newRows(buffered, format)
	bar := a.progress("exporting")
	warnings, err := replayRun(ctx, r, func(o *correlate.Output) error {
		for i := range o.Phases {
			if err := rows.write(requestRow(&o.Phases[i], anchor)); err != nil {
				return err
			}
		}
		return nil
	}, bar.at)
	bar.done()
	if err != nil {
		return err
	}
	for _, text := range warnings {
		a.say("tpotscope: %s\n", text)
	}
	rows.flush()
	return buffered.Flush()
}

// field is one named value of a row.
type field struct {
	name  string
	value any
}

// requestRow is what is exported of one request.
func requestRow(p *correlate.Phase, a timeline.Anchor) []field {
	r, l := &p.Request, &p.Latency
	row := []field{
		{"id", r.ID},
		{"trace_id", r.TraceID},
		{"span_id", r.SpanID},
		{"target", r.Target},
		{"model", r.Model},
		{"operation", r.Operation},
		{"sent", a.Time(r.Sent).Format(time.RFC3339Nano)},
		{"status", r.Status.String()},
		{"http_status", r.HTTPStatus},
		{"finish", r.Finish},
		{"streaming", r.Streaming},
		{"output_tokens", l.N},
		{"count_source", r.Counted.String()},
		{"prompt_tokens", known(r.PromptKnown, r.PromptTokens)},
		{"first_tokens", l.KFirst},
		{"events", r.Events},
		{"kernel_stamped", r.KernelStamped},
		{"coalesced", r.Coalesced},
		{"ttft_s", l.TTFT},
		{"tpot_s", l.TPOT},
		{"tpot_n1_s", l.TPOTN1},
		{"e2e_s", l.E2E},
		{"first_gap_s", l.FirstGap},
		{"slope_s", l.Slope},
		{"stalls", len(l.Stalls)},
		{"flags", append([]string{}, l.Flags.Names()...)},
		{"engine_output_tokens", r.Engine.OutputTokens},
		{"engine_output_s", r.Engine.OutputTime.Seconds()},
		{"concurrency", p.Concurrency},
		{"bound", string(p.Label)},
		{"reason", p.Reason},
		{"confidence", p.Confidence.String()},
		{"grade", string(p.Grade)},
		{"windows", p.Windows},
		{"mixture", p.Mixture},
		{"share_memory", p.Shares.Memory},
		{"share_compute", p.Shares.Compute},
		{"share_launch", p.Shares.Launch},
		{"share_host", p.Shares.Host},
		{"share_other", p.Shares.Other},
		{"throttled_s", p.ThrottledS},
		{"warmup", p.Warmup},
	}
	for _, c := range []timeline.Counter{timeline.DRAMUtil, timeline.SMUtil, timeline.TensorUtil, timeline.SMClock, timeline.Power} {
		m := timeline.Absent("no whole window")
		if p.Counters[c].OK() {
			m = timeline.Known(p.Counters[c].Value)
		}
		row = append(row, field{c.String(), m})
	}
	return row
}

func known(ok bool, n int) timeline.Measure {
	if !ok {
		return timeline.Absent("not told")
	}
	return timeline.Known(float64(n))
}

// rows writes fields as JSON lines or CSV.
type rows struct {
	w      io.Writer
	csv    *csv.Writer
	header bool
}

func newRows(w io.Writer, format string) *rows {
	r := &rows{w: w}
	if format == "csv" {
		r.csv = csv.NewWriter(w)
	}
	return r
}

func (r *rows) write(fields []field) error {
	if r.csv != nil {
		return r.writeCSV(fields)
	}
	line := []byte{'{'}
	for i, f := range fields {
		v, err := json.Marshal(f.value)
		if err != nil {
			return fmt.Errorf("write %s: %w", f.name, err)
		}
		if i > 0 {
			line = append(line, ',')
		}
		line = append(append(strconv.AppendQuote(line, f.name), ':'), v...)
	}
	_, err := r.w.Write(append(line, '}', '\n'))
	return err
}

func (r *rows) writeCSV(fields []field) error {
	cells := make([]string, len(fields))
	if !r.header {
		for i, f := range fields {
			cells[i] = f.name
		}
		if err := r.csv.Write(cells); err != nil {
			return err
		}
		r.header = true
	}
	for i, f := range fields {
		cells[i] = cell(f.value)
	}
	return r.csv.Write(slices.Clone(cells))
}

// cell spells a value for CSV; absent ones are empty.
func cell(v any) string {
	switch v := v.(type) {
	case timeline.Measure:
		if !v.OK() {
			return ""
		}
		return strconv.FormatFloat(v.Value, 'g', -1, 64)
	case string:
		return v
	case []string, []correlate.Part:
		b, err := json.Marshal(v)
		if err != nil {
			return ""
		}
		return string(b)
	}
	return fmt.Sprint(v)
}

func (r *rows) flush() {
	if r.csv != nil {
		r.csv.Flush()
	}
}
