package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

// findings are what the helper's probe prints.
type findings struct {
	Driver           string   `json:"driver"`
	DriverNote       string   `json:"driver_note"` // what is made of a driver that is not known
	MissingFunctions []string `json:"missing_functions"`
	remote.Findings
}

// resetHint is what helps where the driver does not answer.
const resetHint = "look for Xid lines in `dmesg`; a hung driver needs a GPU reset or a reboot"

// missingSymbol is the exit code of a process whose dynamic loader did not find a symbol.
const missingSymbol = 127

// checkHelper finds the helper and lets it probe the driver. It returns nil if that gave nothing.
func (r *Report) checkHelper(ctx context.Context, o Options) *findings {
	if o.NoCounters != "" {
		r.add(Check{Name: "helper", State: Skipped, Detail: o.NoCounters})
		return nil
	}
	path := o.Helper
	if path == "" {
		found, err := remote.Find(o.HelperDir)
		if err != nil {
			r.add(Check{
				"helper", Failed, remote.HelperName + " is neither beside this program nor on PATH", "you",
				"build it with `make` (needs gcc) and keep both binaries in one folder",
			})
			return nil
		}
		path = found
	}
	out, check := probe(ctx, path, o)
	if check.Name != "helper" {
		r.add(Check{Name: "helper", State: Fine, Detail: path})
	}
	if check.State != Fine {
		r.add(check)
		return nil
	}
	var f findings
	if err := json.Unmarshal(out, &f); err != nil {
		r.add(Check{
			"driver", Failed, "the helper's answer is not understood: helper and agent are of different versions", "you",
			"install both binaries from one build",
		})
		return nil
	}
	detail := "driver " + f.Driver
	if slices.ContainsFunc(f.GPUs, func(g timeline.GPU) bool { return g.Simulated }) {
		r.Simulated, detail = true, "SIMULATED driver "+f.Driver
	}
	if n := len(f.MissingFunctions); n > 0 {
		detail += fmt.Sprintf("; lacks %d functions this version knows, and is read without them", n)
	}
	state := Fine
	if f.DriverNote != "" {
		state, detail = Warning, detail+"; "+f.DriverNote
	}
	r.add(Check{Name: "driver", State: state, Detail: detail})
	return &f
}

// probe runs the helper's probe of the driver and returns what it prints, or what went wrong.
func probe(ctx context.Context, path string, o Options) ([]byte, Check) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	args := []string{"--probe"}
	if o.Library != "" {
		args = append(args, "--library", o.Library)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = remote.CleanEnv(o.Env)
	cmd.WaitDelay = time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if err != nil {
		return nil, explainProbe(ctx, err, strings.TrimSpace(errOut.String()), o)
	}
	return out.Bytes(), Check{State: Fine}
}

// explainProbe turns a failed probe into what it means.
func explainProbe(ctx context.Context, err error, stderr string, o Options) Check {
	var exit *exec.ExitError
	switch {
	case cmdDidNotRun(err):
		return Check{
			"helper", Failed, "cannot run: " + err.Error(), "you",
			"build it with `make` (needs gcc), make it executable, or name it with --set nvml.helper=PATH",
		}
	case errors.Is(ctx.Err(), context.Canceled):
		return Check{Name: "driver", State: Skipped, Detail: "interrupted before the driver answered"}
	case ctx.Err() != nil:
		return Check{
			"driver", Failed, fmt.Sprintf("the driver did not answer within %v: it hangs", o.Timeout), "the cluster's admin",
			resetHint,
		}
	case errors.As(err, &exit) && exit.ExitCode() == missingSymbol:
		return Check{
			"driver", Failed, "the driver's library lacks a function: " + lastLine(stderr), "the cluster's admin",
			"install a driver and library of one version, R525 or newer",
		}
	case strings.Contains(stderr, "library not found"):
		return Check{
			"driver", Failed, "libnvidia-ml.so.1 was not found: no NVIDIA driver on this host or in this container", "you",
			"in a container: NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility; elsewhere: install the driver, or name the library with --set nvml.driver_library=PATH",
		}
	}
	if stderr == "" {
		stderr = err.Error()
	}
	return Check{"driver", Failed, lastLine(stderr), "the cluster's admin", "see whether `nvidia-smi` works on this host"}
}

// cmdDidNotRun reports whether err says that a program could not even be started.
func cmdDidNotRun(err error) bool {
	var path *fs.PathError
	var lookup *exec.Error
	return errors.As(err, &path) || errors.As(err, &lookup)
}

// lastLine is the line of the helper's that says the most of why it ended: that of its crash, which a trace follows, else
// the last one.
func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	line := lines[len(lines)-1]
	if i := slices.IndexFunc(lines, remote.IsCrash); i >= 0 {
		line = "the helper crashed in the driver: " + lines[i]
	}
	return strings.TrimPrefix(line, remote.HelperName+": ")
}

// kindsOf counts GPUs by their names, in the order of the list.
func kindsOf(gpus []timeline.GPU) string {
	names := map[string]int{}
	for _, g := range gpus {
		names[g.Name]++
	}
	var parts []string
	for _, g := range gpus {
		if n := names[g.Name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d x %s", n, g.Name))
			names[g.Name] = 0
		}
	}
	return strings.Join(parts, ", ")
}

// checkGPUs turns what the probe found into checks: one line for what works, one for each thing that does not.
func (r *Report) checkGPUs(f *findings, mapped bool) {
	r.GPUs = f.GPUs
	if len(f.GPUs) == 0 {
		r.add(Check{"gpus", Failed, "the driver lists no GPU", "you", "in a container: set NVIDIA_VISIBLE_DEVICES=all"})
		return
	}
	r.add(Check{Name: "gpus", State: Fine, Detail: kindsOf(f.GPUs)})
	if f.Missing != "" {
		r.add(Check{
			"lost", Failed, strings.ReplaceAll(f.Missing, "\n", "; "), "the cluster's admin",
			"look for Xid 79 in `dmesg`; the GPU needs a reset or a reboot",
		})
	}
	if len(f.GPUs) > 1 && !mapped {
		r.add(Check{
			"mapping", Warning, fmt.Sprintf("no target names its GPUs: the agent ties an engine to those of the %d on which it sees its processes compute, else there is no verdict", len(f.GPUs)), "you",
			"look at targets in the agent's /healthz; in the configuration: targets: [{name: NAME, engine_url: URL, gpus: [" + f.GPUs[0].UUID + ", ...]}] (`nvidia-smi -L` lists them)",
		})
	}
	byCall := map[string]map[string]int{} // GPUs, by state
	var order []string
	r.dram = map[int]string{}
	for _, c := range f.Capabilities {
		if c.Call == timeline.DRAMUtil.String() && c.State != timeline.StateOK.String() {
			r.dram[c.GPU] = c.State
		}
		if byCall[c.Call] == nil {
			order = append(order, c.Call)
			byCall[c.Call] = map[string]int{}
		}
		state := c.State
		if state == timeline.StateUnsupported.String() && c.GPU >= 0 && c.GPU < len(f.GPUs) && f.GPUs[c.GPU].ParentUUID != "" {
			state = ofInstances
		}
		byCall[c.Call][state]++
	}
	fine := 0
	for _, call := range order {
		states := byCall[call]
		delete(states, timeline.StateOK.String())
		if len(states) == 0 {
			fine++
		}
		for _, state := range slices.Sorted(maps.Keys(states)) {
			r.add(explainCall(call, state, fmt.Sprintf("on %d of %d GPUs: %s", states[state], len(f.GPUs), words(state))))
		}
	}
	if fine > 0 {
		r.add(Check{Name: "counters", State: Fine, Detail: fmt.Sprintf("%d of %d counters can be read on every GPU", fine, len(order))})
	}
	r.checkLatency(f)
}

// ofInstances is the state of what a driver does not tell of a part of a GPU.
const ofInstances = "not_supported_on_instances_(MIG)"

// words spells a state for people.
func words(state string) string { return strings.ReplaceAll(state, "_", " ") }

// explainCall returns the check of one counter on the GPUs on which it is in a state that is not fine.
func explainCall(call, state, where string) Check {
	switch state {
	case timeline.StateUnsupported.String():
		return Check{call, Warning, where, "nobody: this hardware or driver does not have it", ""}
	case ofInstances:
		return Check{call, Warning, where, "nobody: the driver tells it of a whole GPU, not of an instance", ""}
	case timeline.StateNoPermission.String():
		return Check{
			call, Failed, where, "the cluster's admin",
			"run the agent as root; in a container `privileged: true` (CAP_SYS_ADMIN alone was reported to be lost after minutes, NVIDIA/DCGM#214)",
		}
	case timeline.StateTimeout.String():
		return Check{call, Failed, where + ", a call of the driver does not come back", "the cluster's admin", resetHint}
	case timeline.StateLost.String():
		return Check{call, Failed, where, "the cluster's admin", "look for Xid 79 in `dmesg`; the GPU needs a reset or a reboot"}
	}
	return Check{call, Warning, where, "the cluster's admin", "run `tpotscope doctor` again; if it stays, look in `dmesg`"}
}

// checkLatency warns if the driver is too slow for the default rates.
func (r *Report) checkLatency(f *findings) {
	for _, l := range f.Latency {
		if l.MeanUS > 20_000 {
			r.add(Check{
				"latency", Warning, fmt.Sprintf("%s takes %.0f ms on GPU %d", l.Call, l.MeanUS/1000, l.GPU), "you",
				"the sampler lowers its rate by itself; set nvml.period higher to be explicit",
			})
			return
		}
	}
}
