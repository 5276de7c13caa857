// Package doctor says what this node can measure, what it cannot, why, and who can change that: the helper, the
// driver's library, each GPU's counters, permissions, the engine, the agent's own places. It changes nothing.
package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/agent/calibration"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// State is how one check ended.
type State string

// The states.
const (
	Fine    State = "ok"
	Warning State = "warn" // goes on with less
	Failed  State = "fail" // what it stands for cannot be measured
	Skipped State = "skip" // could not be checked, for a reason that another check gives
)

// Check is the outcome of one check.
type Check struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Detail string `json:"detail"`
	Who    string `json:"who,omitempty"` // can change it: "you", "the cluster's admin", "nobody: the hardware lacks it"
	Fix    string `json:"fix,omitempty"` // the exact step
}

// Report is everything the checks found.
type Report struct {
	Schema    string         `json:"schema"`
	Time      time.Time      `json:"time"`
	Simulated bool           `json:"simulated"`
	Checks    []Check        `json:"checks"`
	GPUs      []timeline.GPU `json:"gpus"`
	Engines   []Engine       `json:"engines"`
	CanSay    []string       `json:"can_say"`
	CannotSay []string       `json:"cannot_say"`

	Calibration []calibration.Finding `json:"calibration,omitempty"`

	dram map[int]string // state of the DRAM counter of each GPU on which it is not fine
}

// Schema names the JSON form of a report.
const Schema = "tpotscope.doctor/1"

// Engine is an LLM server that answered.
type Engine struct {
	URL     string `json:"url"`
	Kind    string `json:"kind"`
	Model   string `json:"model,omitempty"`
	Version string `json:"version,omitempty"`
}

// Options say what is checked.
type Options struct {
	HelperDir  string        // looked in before PATH
	Helper     string        // instead of looking
	Library    string        // of the driver
	Env        []string      // of the helper, whole
	Simulated  bool          // the library is a simulation
	NoCounters string        // not empty: the driver is left alone, and this is why
	Engines    []string      // URLs; empty: the usual local ports
	Socket     string        // of the agent
	StateDir   string        // where recordings go
	DCGM       string        // URL of dcgm-exporter, if one is configured
	Mapped     bool          // a target of the configuration names its GPUs
	Timeout    time.Duration // of each check that waits; zero: 15 s

	Calibrate bool               // say what is known of each GPU's peaks
	With      string             // a command that runs known loads, for the shell; empty: none is run
	Counters  calibration.Source // in place of the helper, for the calibration
	Say       func(string)       // takes a line on what goes on; may be nil
}

// Run makes all checks. It returns what was found even if ctx ends before all are made.
func Run(ctx context.Context, o Options) *Report {
	if o.Timeout == 0 {
		o.Timeout = 15 * time.Second
	}
	r := &Report{
		Schema: Schema, Time: time.Now(),
		GPUs: []timeline.GPU{}, Engines: []Engine{}, CanSay: []string{}, CannotSay: []string{},
	}
	r.add(checkClocks())
	r.add(checkStamps())
	if probed := r.checkHelper(ctx, o); probed != nil {
		r.checkGPUs(probed, o.Mapped)
	}
	r.checkDCGM(ctx, o)
	switch {
	case o.Calibrate && len(r.GPUs) > 0:
		r.calibrate(ctx, o)
	case o.Calibrate:
		r.add(r.nothingToCalibrate())
	}
	r.checkEngines(ctx, o)
	r.add(checkAgent(ctx, o.Socket))
	r.add(checkState(o.StateDir))
	r.conclude()
	return r
}

func (r *Report) add(c Check) { r.Checks = append(r.Checks, c) }

// Worst returns the worst state of all checks.
func (r *Report) Worst() State {
	worst := Fine
	for _, c := range r.Checks {
		switch c.State {
		case Failed:
			return Failed
		case Warning:
			worst = Warning
		case Fine, Skipped:
		}
	}
	return worst
}

// conclude says in words what the findings allow to be said, and what not.
func (r *Report) conclude() {
	r.concludeBound()
	if len(r.Engines) > 0 {
		r.CanSay = append(r.CanSay, "batch, tokens and mean TPOT of the engine without touching traffic (evidence L0)")
	} else {
		r.CannotSay = append(r.CannotSay, "batch, prompt tokens, traffic coverage: no engine tells its metrics")
	}
	r.CanSay = append(r.CanSay, "TTFT, TPOT and gaps per request, with the proxy in the path (evidence L3)")
}

// concludeBound says on which GPUs it can be told what bounds decode: that takes windows of DRAM activity.
func (r *Report) concludeBound() {
	if len(r.GPUs) == 0 {
		r.CannotSay = append(r.CannotSay, "what bounds decode: no GPU counters")
		return
	}
	older, cut, unread := 0, 0, map[string]int{}
	for i, g := range r.GPUs {
		switch state := r.dram[i]; {
		case g.MIG:
			cut++
		case !g.GPM:
			older++
		case state != "":
			unread[state]++
		}
	}
	able := len(r.GPUs) - older - cut
	if cut > 0 {
		r.CannotSay = append(r.CannotSay, fmt.Sprintf("what bounds decode %s: instances (MIG) share what the counters tell", r.on(cut)))
	}
	if older > 0 {
		r.CannotSay = append(r.CannotSay, fmt.Sprintf("what bounds decode %s: no activity windows (GPM, Hopper and newer)", r.on(older)))
	}
	for _, state := range slices.Sorted(maps.Keys(unread)) {
		able -= unread[state]
		r.CannotSay = append(r.CannotSay, fmt.Sprintf("whether memory bounds decode %s: DRAM bandwidth cannot be read (%s)", r.on(unread[state]), words(state)))
	}
	if able > 0 {
		r.CanSay = append(r.CanSay, fmt.Sprintf("what bounds decode %s, per cell of 1 s, from windows of 100 ms and more; never per token", r.on(able)))
	}
}

// on says on how many of the GPUs.
func (r *Report) on(n int) string { return fmt.Sprintf("on %d of %d GPUs", n, len(r.GPUs)) }
