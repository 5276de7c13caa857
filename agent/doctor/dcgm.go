package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// usualExporter is where dcgm-exporter listens unless told otherwise.
const usualExporter = "http://127.0.0.1:9400"

// exporterWatch is how long an exporter is looked at: long enough to see one that collects every second or two do so.
const exporterWatch = 5 * time.Second

// checkDCGM looks for dcgm-exporter where the driver gives no windows of some GPU, or where one is configured.
func (r *Report) checkDCGM(ctx context.Context, o Options) {
	need := 0
	for i, g := range r.GPUs {
		if !g.GPM || r.dram[i] != "" {
			need++
		}
	}
	switch {
	case o.DCGM != "":
		r.add(askDCGM(ctx, o.DCGM, need, o.NoCounters != "" || len(r.GPUs) == 0))
	case need > 0:
		c := askDCGM(ctx, usualExporter, need, false)
		switch c.State { //nolint:exhaustive // a warning stands as it is
		case Failed:
			c = Check{
				"dcgm", Skipped, "no dcgm-exporter on " + usualExporter, "you",
				fmt.Sprintf("for the %d of %d GPUs without windows from the driver: run dcgm-exporter with its profiling fields and an interval of 1 s (-c 1000), and --set dcgm.url=http://HOST:9400", need, len(r.GPUs)),
			}
		case Fine:
			c.State, c.Who = Warning, "you"
			c.Fix = "--set dcgm.url=" + usualExporter + " has the agent judge from its windows, with --set correlation.cell=5s --set correlation.lateness=3s for an exporter that collects each second"
		}
		r.add(c)
	}
}

// askDCGM looks at an exporter for a while.
func askDCGM(ctx context.Context, url string, need int, alone bool) Check {
	clock, err := hostclock.New()
	if err != nil {
		return Check{Name: "dcgm", State: Skipped, Detail: "no clock"}
	}
	var seen []*scrape.DCGMReading
	d, err := scrape.NewDCGM(scrape.DCGMConfig{URL: url, Interval: 250 * time.Millisecond}, clock.Now, scrape.DCGMSink{
		Reading: func(x *scrape.DCGMReading) { seen = append(seen, x) },
	})
	if err != nil {
		return Check{"dcgm", Failed, err.Error(), "you", "--set dcgm.url=http://HOST:9400"}
	}
	if err := d.Once(ctx); err != nil {
		return Check{"dcgm", Failed, url + ": " + err.Error(), "you", "see that dcgm-exporter runs there, and that its metrics name GPUs by UUID"}
	}
	ctx, cancel := context.WithTimeout(ctx, exporterWatch)
	defer cancel()
	_ = d.Run(ctx) // it returns no error
	every := d.Stats().Every
	if len(seen) == 0 {
		return Check{
			"dcgm", Warning, fmt.Sprintf("%s shows no new values for %v: it collects too seldom, 30 s by default", url, exporterWatch), "the cluster's admin",
			"set its interval to 1 s: -c 1000, or DCGM_EXPORTER_INTERVAL=1000",
		}
	}
	for _, x := range seen {
		if x.Windows.Has.Has(timeline.DRAMUtil) {
			what := "a cross-check"
			if need > 0 || alone {
				what = "windows of GPUs of which the driver gives none"
			}
			return Check{Name: "dcgm", State: Fine, Detail: fmt.Sprintf("dcgm-exporter at %s collects every %v: %s", url, every.Round(100*time.Millisecond), what)}
		}
	}
	return Check{
		"dcgm", Warning, url + " tells no profiling fields (DCGM_FI_PROF_DRAM_ACTIVE)", "the cluster's admin",
		"have it collect its dcp-metrics-included.csv, with CAP_SYS_ADMIN and no other profiler on the GPU",
	}
}
