package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/agent/calibration"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

// calibrate says what is known of each GPU's peaks, and runs the loads that were named to measure what it reaches.
func (r *Report) calibrate(ctx context.Context, o Options) {
	clock, err := hostclock.New()
	if err != nil {
		return // said already, by the check of the clocks
	}
	source := o.Counters
	if source == nil {
		path := o.Helper
		if path == "" {
			if path, err = remote.Find(o.HelperDir); err != nil {
				return // said already, by the check of the helper
			}
		}
		source = remote.NewSource(remote.Options{Helper: path, Library: o.Library, Config: nvml.DefaultConfig(), Now: clock.Now})
	}
	c := calibration.Options{Source: source, Now: clock.Now, Env: o.Env, Wall: time.Now, Say: o.Say}
	if o.With != "" {
		c.Command = []string{"/bin/sh", "-c", "exec " + o.With}
	}
	r.Calibration, err = calibration.Run(ctx, c)
	if err != nil {
		r.add(Check{"calibration", Failed, err.Error(), "you", "see the other checks"})
		return
	}
	for i := range r.Calibration {
		r.checkPeaks(&r.Calibration[i])
	}
	if o.With != "" {
		r.keep(o.StateDir)
	}
}

// nothingToCalibrate says why there is no GPU to calibrate, in the words of the check that found none.
func (r *Report) nothingToCalibrate() Check {
	why := "the driver lists no GPU"
	for _, c := range r.Checks {
		if (c.Name == "helper" || c.Name == "driver") && c.State != Fine {
			why = c.Detail
		}
	}
	return Check{Name: "calibration", State: Skipped, Detail: "nothing can be calibrated: " + why}
}

// checkPeaks says of one GPU what keeps it from what its model can do.
func (r *Report) checkPeaks(f *calibration.Finding) {
	for _, k := range f.Known {
		if k.Warning {
			r.add(Check{
				"peaks", Warning, fmt.Sprintf("GPU %s: %s: %s", timeline.ShortUUID(f.GPU.UUID), k.Name, k.Text), "the cluster's admin",
				"`nvidia-smi -q -d CLOCK,POWER` shows what was set",
			})
		}
	}
}

// keep writes down what was measured, beside what the node had of other GPUs.
func (r *Report) keep(stateDir string) {
	kept, err := calibration.Load(stateDir)
	if err != nil {
		kept = calibration.File{} // what cannot be read is replaced
	}
	measured := 0
	for i := range r.Calibration {
		switch f := &r.Calibration[i]; {
		case f.Entry != nil:
			kept.Put(*f.Entry)
			measured++
		case f.Refused != "":
			r.add(Check{
				"calibration", Failed, fmt.Sprintf("GPU %s: not calibrated: %s", timeline.ShortUUID(f.GPU.UUID), f.Refused), "you",
				"stop what uses the GPU, and see that the command speaks the kernel lines of deploy/gpucheck/README.md",
			})
		}
	}
	if measured == 0 {
		return
	}
	if err := kept.Save(stateDir); err != nil {
		r.add(Check{"calibration", Failed, err.Error(), "you", "--set state_dir=PATH, or run as the agent's user"})
		return
	}
	r.add(Check{Name: "calibration", State: Fine, Detail: fmt.Sprintf("%d of %d GPUs measured; an agent that starts reads %s", measured, len(r.Calibration), calibration.Path(stateDir))})
}

// peaks writes what is known of each GPU's peaks, and what was measured.
func (r *Report) peaks(b *strings.Builder) {
	for i := range r.Calibration {
		f := &r.Calibration[i]
		var lines []string
		for _, k := range f.Known {
			lines = append(lines, k.Name+": "+k.Text)
		}
		if e := f.Entry; e != nil {
			lines = append(lines, fmt.Sprintf("calibrated: DRAM reaches %.3f of its peak (%.0f GB/s counted, %.2f of what the counter tells)", e.EtaBandwidth, e.BytesPerS/1e9, f.Scale))
			if e.EtaTensor > 0 {
				lines = append(lines, fmt.Sprintf("calibrated: tensor cores active %.3f of the time at %.0f MHz (%.0f TFLOP/s, %.2f of the peak at that clock)",
					e.EtaTensor, e.SMClockHz/1e6, e.OpsPerS/1e12, f.MFU))
			}
		}
		if f.Refused != "" {
			lines = append(lines, "not calibrated: "+f.Refused)
		}
		list(b, fmt.Sprintf("\nPeaks of GPU %s, %s:\n", timeline.ShortUUID(f.GPU.UUID), f.GPU.Name), lines)
	}
}
