package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// exportOptions are the flags of export.
type exportOptions struct {
	format, out    string
	force, columns bool
}

func (a *app) exportCommand() *cobra.Command {
	var o exportOptions
	cmd := &cobra.Command{
		Use: "export RUN", GroupID: "data", Short: "one row a request: latencies, and what bounded its decode",
		Long: `Export replays a recording and writes one row a request as JSON lines or CSV. A
value that is missing says why in JSON and is empty in CSV. No row holds any
content. The recording's own files are Arrow streams, which most tools read as
they are. --columns says what each column means.`,
		Example: `  tpotscope export @last --format jsonl | jq 'select(.tpot_s > 0.05)'
  tpotscope export @last --format csv -o requests.csv
  tpotscope export --columns`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.columns {
				return none(cmd, args)
			}
			return one(aRun)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.columns {
				return printColumns(a.out)
			}
			if o.format != "jsonl" && o.format != "csv" {
				return usage(cmd, fmt.Errorf("--format: %q is not one of jsonl, csv", o.format))
			}
			cfg, err := a.load(nil)
			if err != nil {
				return err
			}
			dir, err := a.findRun(cfg.StateDir, args[0])
			if err != nil {
				return err
			}
			if err := o.checkOutput(dir); err != nil {
				return usage(cmd, err)
			}
			return a.export(cmd.Context(), dir, o.format, o.out)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&o.format, "format", "jsonl", "jsonl or csv")
	fl.StringVarP(&o.out, "output", "o", "", "file to write (default: standard output)")
	fl.BoolVar(&o.force, "force", false, "overwrite the file if it is there")
	fl.BoolVar(&o.columns, "columns", false, "print what each column means, and nothing else")
	return cmd
}

// checkOutput makes sure that writing the file destroys nothing.
func (o *exportOptions) checkOutput(dir string) error {
	if o.out == "" {
		return nil
	}
	place := func(path string) (string, error) {
		path, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		if target, err := filepath.EvalSymlinks(path); err == nil {
			return target, nil
		}
		return path, nil
	}
	inside, err := place(dir)
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	folder, err := place(filepath.Dir(o.out))
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	file, err := place(o.out)
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	for _, path := range []string{folder, filepath.Dir(file)} {
		if rel, err := filepath.Rel(inside, path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return fmt.Errorf("--output: %s is inside the recording", o.out)
		}
	}
	if st, err := os.Stat(o.out); err == nil && st.Mode().IsRegular() && !o.force {
		return fmt.Errorf("--output: %s is there already: overwrite it with --force", o.out)
	}
	return nil
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
	simulated := r.Meta().Simulated || slices.ContainsFunc(r.Meta().GPUs, func(g timeline.GPU) bool { return g.Simulated })
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
	rows, all := newRows(buffered, format), columns()
	bar := a.progress("exporting")
	warnings, err := replayRun(ctx, r, func(o *correlate.Output) error {
		for i := range o.Phases {
			if err := rows.write(requestRow(all, &rowSource{&o.Phases[i], anchor, simulated})); err != nil {
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

// column is one value of a row: its name, with the unit where it has one, what it means, and how it is found.
type column struct {
	name, meaning string
	value         func(*rowSource) any
}

// rowSource is what a row is made of.
type rowSource struct {
	p         *correlate.Phase
	anchor    timeline.Anchor
	simulated bool
}

func (s *rowSource) request() *timeline.Request { return &s.p.Request }

// columns are all columns, in their order.
func columns() []column {
	return slices.Concat(identityColumns(), countColumns(), latencyColumns(), verdictColumns(), counterColumns())
}

func identityColumns() []column {
	return []column{
		{"id", "id of the request, unique in the recording", func(s *rowSource) any { return s.request().ID }},
		{"simulated", "true if GPU or server were a simulation", func(s *rowSource) any { return s.simulated }},
		{"trace_id", "W3C trace id that went upstream with the request", func(s *rowSource) any { return s.request().TraceID }},
		{"span_id", "W3C span id that went upstream with the request", func(s *rowSource) any { return s.request().SpanID }},
		{"target", "name of the engine, with its GPUs", func(s *rowSource) any { return s.request().Target }},
		{"model", "model that was asked for", func(s *rowSource) any { return s.request().Model }},
		{"operation", "chat, text_completion and the like", func(s *rowSource) any { return s.request().Operation }},
		{"sent", "when the request was sent, RFC 3339 in UTC", func(s *rowSource) any {
			return s.anchor.Time(s.request().Sent).UTC().Format(time.RFC3339Nano)
		}},
		{"status", "how it ended: ok, or what went wrong, as the observer saw it", func(s *rowSource) any { return s.request().Status.String() }},
		{"http_status", "status of the HTTP response; 0 if there was none", func(s *rowSource) any { return s.request().HTTPStatus }},
		{"finish", "finish reason that the engine told, whatever the status; abort: the engine gave the request up", func(s *rowSource) any { return s.request().Finish }},
		{"streaming", "true if the reply came as a stream of events", func(s *rowSource) any { return s.request().Streaming }},
	}
}

func countColumns() []column {
	return []column{
		{"output_tokens", "tokens of the reply", func(s *rowSource) any { return s.p.Latency.N }},
		{"count_source", "where output_tokens comes from", func(s *rowSource) any { return s.request().Counted.String() }},
		{"prompt_tokens", "tokens of the prompt, where told", func(s *rowSource) any { return known(s.request().PromptKnown, float64(s.request().PromptTokens)) }},
		{"first_tokens", "tokens in the first event that bears any", func(s *rowSource) any { return s.p.Latency.KFirst }},
		{"events", "events that bear tokens", func(s *rowSource) any { return s.request().Events }},
		{"kernel_stamped", "events with a receive time of the kernel's", func(s *rowSource) any { return s.request().KernelStamped }},
		{"coalesced", "events that came in one read with another", func(s *rowSource) any { return s.request().Coalesced }},
	}
}

func latencyColumns() []column {
	return []column{
		{"ttft_s", "s, from sending to the first token", func(s *rowSource) any { return s.p.Latency.TTFT }},
		{"tpot_s", "s, time per output token after the first event", func(s *rowSource) any { return s.p.Latency.TPOT }},
		{"tpot_n1_s", "s, the same by the plain count of tokens less one", func(s *rowSource) any { return s.p.Latency.TPOTN1 }},
		{"e2e_s", "s, from sending to the end", func(s *rowSource) any { return s.p.Latency.E2E }},
		{"first_gap_s", "s, between the first two events", func(s *rowSource) any { return s.p.Latency.FirstGap }},
		{"slope_s", "s, robust slope of time over tokens", func(s *rowSource) any { return s.p.Latency.Slope }},
		{"stalls", "gaps far beyond the usual", func(s *rowSource) any { return len(s.p.Latency.Stalls) }},
		{"flags", "what is odd about the stream; parted by blanks in CSV", func(s *rowSource) any { return append([]string{}, s.p.Latency.Flags.Names()...) }},
		{"engine_output_tokens", "tokens of the reply by the engine's own account, where told", func(s *rowSource) any {
			return known(s.request().Engine.OutputTokens > 0, float64(s.request().Engine.OutputTokens))
		}},
		{"engine_output_s", "s, that the engine says it spent on them, where told", func(s *rowSource) any {
			return known(s.request().Engine.OutputTime > 0, s.request().Engine.OutputTime.Seconds())
		}},
		{"engine_per_output_s", "s, time per output token by the engine's own account, where told", func(s *rowSource) any {
			e := &s.request().Engine
			return known(e.OutputTokens > 0 && e.OutputTime > 0, e.OutputTime.Seconds()/max(1, float64(e.OutputTokens)))
		}},
		{"concurrency", "mean number of requests that decoded at the same time", func(s *rowSource) any { return s.p.Concurrency }},
	}
}

func verdictColumns() []column {
	return []column{
		{"bound", "what bounded the decode", func(s *rowSource) any { return string(s.p.Label) }},
		{"reason", "why bound is undetermined, or what it rests on", func(s *rowSource) any { return s.p.Reason }},
		{"confidence", "how sure that is", func(s *rowSource) any { return s.p.Confidence.String() }},
		{"grade", "whether the evidence is the request's alone or shared with others", func(s *rowSource) any { return string(s.p.Grade) }},
		{"windows", "counter windows in the decode", func(s *rowSource) any { return s.p.Windows }},
		{"mixture", "share of the decode under each verdict; JSON in CSV", func(s *rowSource) any { return s.p.Mixture }},
		{"share_memory", "share of the decode that DRAM bandwidth bounds", func(s *rowSource) any { return s.p.Shares.Memory }},
		{"share_compute", "share that arithmetic bounds", func(s *rowSource) any { return s.p.Shares.Compute }},
		{"share_launch", "share in which SMs wait for kernels", func(s *rowSource) any { return s.p.Shares.Launch }},
		{"share_host", "share in which the GPU waits for the host", func(s *rowSource) any { return s.p.Shares.Host }},
		{"share_other", "share of all else", func(s *rowSource) any { return s.p.Shares.Other }},
		{"throttled_s", "s of the decode in which clocks were held", func(s *rowSource) any { return s.p.ThrottledS }},
		{"warmup", "true for requests that reports leave out as warm-up", func(s *rowSource) any { return s.p.Warmup }},
	}
}

// counterColumns are means of the GPUs' counters over the decode.
func counterColumns() []column {
	var list []column
	for _, c := range []struct {
		counter       timeline.Counter
		name, meaning string
	}{
		{timeline.DRAMUtil, "dram_util_ratio", "0 to 1, DRAM bandwidth in use, of the peak"},
		{timeline.SMUtil, "sm_util_ratio", "0 to 1, share of SMs with a warp resident"},
		{timeline.TensorUtil, "tensor_util_ratio", "0 to 1, share of cycles in which tensor pipes are active"},
		{timeline.SMClock, "sm_clock_hz", "Hz, SM clock"},
		{timeline.Power, "power_w", "W, power of the board"},
	} {
		list = append(list, column{c.name, c.meaning + "; mean over the decode", func(s *rowSource) any {
			if m := s.p.Counters[c.counter]; m.OK() {
				return timeline.Known(m.Value)
			}
			return timeline.Absent("no whole window")
		}})
	}
	return list
}

// printColumns prints what each column means.
func printColumns(w io.Writer) error {
	var b strings.Builder
	width := 0
	for _, c := range columns() {
		width = max(width, len(c.name))
	}
	indent := strings.Repeat(" ", width+2)
	for _, c := range columns() {
		b.WriteString(c.name + indent[len(c.name):] + strings.TrimLeft(wrap(c.meaning, indent), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// field is one named value of a row.
type field struct {
	name  string
	value any
}

// requestRow is what is exported of one request.
func requestRow(all []column, from *rowSource) []field {
	row := make([]field, len(all))
	for i, c := range all {
		row[i] = field{c.name, c.value(from)}
	}
	return row
}

func known(ok bool, v float64) timeline.Measure {
	if !ok {
		return timeline.Absent("not told")
	}
	return timeline.Known(v)
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
	case []string:
		return strings.Join(v, " ")
	case []correlate.Part:
		if len(v) == 0 {
			return ""
		}
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
