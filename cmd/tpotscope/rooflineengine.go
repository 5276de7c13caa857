package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/agent/calibration"
	"github.com/tpotscope/tpotscope/agent/doctor"
	"github.com/tpotscope/tpotscope/agent/hostclock"
	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// told is what the configuration and a running engine tell of a target. What neither tells is zero.
type told struct {
	url               string
	model, alias      string // what was loaded, and the name that requests use
	dtype, quant      string
	kvDType           string
	tp                int
	parameters, bytes float64
	running, context  float64 // requests that run, and their mean context

	modelFrom, dtypeFrom, kvFrom string
}

// missing says why there is no model.
func (t *told) missing() string {
	if t.url == "" {
		return "no engine tells its metrics on the usual local ports, and no --engine is named"
	}
	return "the engine at " + t.url + " does not tell its model"
}

// askEngine asks the engine that was named, else the configuration's first target, else whoever answers on a usual port.
// That none answers is an error only where one was named.
func (a *app) askEngine(ctx context.Context, cfg *agent.Config, url string) (told, error) {
	var t told
	named := url != ""
	if !named && len(cfg.Targets) > 0 {
		target := &cfg.Targets[0]
		url = target.EngineURL
		t = told{model: target.Model, alias: target.Model, dtype: target.DType, kvDType: target.KVDType, tp: target.TP}
		t.modelFrom, t.dtypeFrom, t.kvFrom = fromConfig, fromConfig, fromConfig
	}
	if url == "" {
		found := doctor.FindEngines(ctx, doctor.UsualEngines())
		if len(found) == 0 {
			return t, nil
		}
		url = found[0].URL
	}
	id, sample, err := identify(ctx, url)
	switch {
	case err != nil && named:
		return t, fmt.Errorf("--engine: %s: %w", strings.TrimRight(url, "/"), err)
	case err != nil && t.model == "":
		return t, fmt.Errorf("engine %s: %w", strings.TrimRight(url, "/"), err)
	case err != nil:
		a.say("engine %s: %v: it is not asked for more than the configuration tells\n", strings.TrimRight(url, "/"), err)
		return t, nil
	}
	t.url = strings.TrimRight(url, "/")
	t.take(id, sample)
	return t, nil
}

// take fills in what the engine tells, where the configuration has not told.
func (t *told) take(id scrape.Identity, sample *timeline.EngineSample) {
	if t.model == "" {
		t.model, t.alias, t.modelFrom = cmp.Or(id.Root, id.Model), id.Model, fromEngine
	}
	if t.dtype == "" {
		t.dtype, t.quant, t.dtypeFrom = id.DType, id.Quant, fromEngine
	}
	if t.kvDType == "" {
		t.kvDType, t.kvFrom = id.KVDType, fromEngine
	}
	if t.tp == 0 {
		t.tp = id.TP
	}
	t.parameters, t.bytes = id.Parameters, id.WeightBytes
	if sample == nil {
		return
	}
	running, ok := sample.Get(timeline.Running)
	if !ok || running < 1 {
		return
	}
	t.running = running
	use, usage := sample.Get(timeline.KVUsage)
	blocks, counted := sample.Get(timeline.KVBlocks)
	size, sized := sample.Get(timeline.KVBlockSize)
	if usage && counted && sized {
		t.context = use * blocks * size / running
	}
}

// identify asks one engine who it is and what it does.
func identify(ctx context.Context, url string) (scrape.Identity, *timeline.EngineSample, error) {
	var id scrape.Identity
	var sample *timeline.EngineSample
	cfg := scrape.DefaultConfig()
	cfg.URL, cfg.Target, cfg.Timeout = url, url, 2*time.Second
	clock, err := hostclock.New()
	if err != nil {
		return id, nil, fmt.Errorf("read clocks: %w", err)
	}
	s, err := scrape.New(cfg, clock.Now, scrape.Sink{
		Sample:   func(e *timeline.EngineSample) { sample = e },
		Event:    func(timeline.Event) {},
		Identity: func(i scrape.Identity) { id = i },
	})
	if err != nil {
		return id, nil, err
	}
	if err := s.Once(ctx); err != nil {
		return id, nil, fmt.Errorf("/metrics: %w", err)
	}
	return id, sample, nil
}

// takeGPU finds the GPU: by its name, else the one that the driver tells.
func (a *app) takeGPU(ctx context.Context, cfg *agent.Config, in *inputs) error {
	if in.gpu != "" {
		g, err := hardware.LookupGPU(in.gpu)
		if err != nil {
			return usage(in.cmd, fmt.Errorf("--gpu: %w", err))
		}
		in.q.Setup.GPU, in.q.Eta = g, etaOf(verdict.EtaOf(g))
		in.origins["gpu"], in.origins["eta"] = fromFlag, in.q.Eta.BandwidthOrigin
		return nil
	}
	if cfg.NVML.Source != agent.SourceHelper {
		return usage(in.cmd, fmt.Errorf("roofline needs --gpu: nvml.source is %s", cfg.NVML.Source))
	}
	engines := []string{"http://127.0.0.1:9"} // none: the engine was asked already
	if in.told.url != "" {
		engines = []string{in.told.url}
	}
	r := doctor.Run(ctx, doctor.Options{
		HelperDir: programDir(), Helper: cfg.NVML.Helper, Library: cfg.NVML.Library, Env: os.Environ(), Engines: engines, StateDir: cfg.StateDir,
	})
	g, spec, err := oneGPU(r)
	if err != nil {
		return usage(in.cmd, fmt.Errorf("roofline needs --gpu: %w", err))
	}
	in.q.Setup.GPU, in.q.Eta, in.origins["gpu"] = g, etaOf(verdict.EtaOf(g)), fromDriver
	if r.Simulated {
		in.origins["gpu"] = fromSimulation
	}
	kept, err := calibration.Load(cfg.StateDir)
	if err != nil {
		a.say("tpotscope: %v: the table's figures are used\n", err)
	} else if eta, ok := kept.Eta(r.GPUs)[spec.UUID]; ok {
		in.q.Eta = etaOf(eta)
	}
	in.origins["eta"] = in.q.Eta.BandwidthOrigin
	return nil
}

// oneGPU returns the GPU that the driver tells, if all of them are of one model.
func oneGPU(r *doctor.Report) (hardware.GPU, timeline.GPU, error) {
	for _, c := range r.Checks {
		if (c.Name == "helper" || c.Name == "driver" || c.Name == "gpus") && c.State == doctor.Failed {
			return hardware.GPU{}, timeline.GPU{}, errors.New(c.Detail)
		}
	}
	if len(r.GPUs) == 0 {
		return hardware.GPU{}, timeline.GPU{}, errors.New("the driver lists no GPU")
	}
	for _, g := range r.GPUs[1:] {
		if g.Name != r.GPUs[0].Name {
			return hardware.GPU{}, timeline.GPU{}, fmt.Errorf("this node has both %s and %s", r.GPUs[0].Name, g.Name)
		}
	}
	g, err := hardware.IdentifyGPU(r.GPUs[0])
	return g, r.GPUs[0], err
}
