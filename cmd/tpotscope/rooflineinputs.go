package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// takeModel finds the model and the formats of weights and cache.
func (in *inputs) takeModel() error {
	name, origin := in.model, fromFlag
	if name == "" {
		if name, origin = in.told.model, in.told.modelFrom; name == "" {
			return fmt.Errorf("roofline needs --model: %s", in.told.missing())
		}
	}
	c, file, err := findModel(name)
	if err != nil && in.model == "" { // the name that the engine was loaded from, then the one that requests use
		if c, file, err = findModel(in.told.alias); err == nil {
			name = in.told.alias
		}
	}
	if err != nil && in.model == "" {
		return fmt.Errorf("the engine's model: %w: name it with --model", err)
	}
	if err != nil {
		return fmt.Errorf("--model: %w", err)
	}
	in.q.Setup.Spec, in.origins["model"], in.file = c.Model, origin, c
	if file {
		in.origins["model"] = fromFile
	}
	return errors.Join(in.takeDType(name, &c), in.takeCache(&c))
}

// takeDType finds the format of the weights: what was said, then what the file, the engine and the name tell.
func (in *inputs) takeDType(name string, c *hardware.Config) error {
	use := func(d hardware.DType, origin string) error {
		in.q.Setup.Weights, in.origins["dtype"] = d, origin
		return nil
	}
	if in.dtype != "" {
		d, err := hardware.LookupDType(in.dtype)
		if err != nil {
			return fmt.Errorf("--dtype: %w", err)
		}
		return use(d, fromFlag)
	}
	if d, err := hardware.LookupDType(in.told.dtype); err == nil && in.told.dtypeFrom == fromConfig {
		return use(d, fromConfig)
	}
	if c.Weights.Bits > 0 {
		return use(c.Weights, fromFile)
	}
	if d, err := hardware.LookupDType(in.told.quant); err == nil {
		return use(d, fromEngine)
	}
	if d, ok := hardware.MeasuredDType(in.told.parameters, in.told.bytes); ok {
		return use(d, fromEngine)
	}
	if word, ok := hardware.PublishedDType(name); ok {
		if d, err := hardware.LookupDType(word); err == nil {
			return use(d, fromName)
		}
	}
	if d, err := hardware.LookupDType(in.told.dtype); err == nil {
		return use(d, fromEngine)
	}
	d, err := hardware.LookupDType("bf16")
	if err != nil {
		return err
	}
	return use(d, fromAssumed)
}

// takeCache finds the format of the KV cache.
func (in *inputs) takeCache(c *hardware.Config) error {
	word, origin := in.kvDType, fromFlag
	if word == "" {
		word, origin = in.told.kvDType, cmp.Or(in.told.kvFrom, fromEngine)
	}
	if word == "" {
		word, origin = c.KVDType, fromFile
	}
	if word == "" || word == "auto" {
		word, origin = "bf16", fromAssumed
	}
	d, err := hardware.LookupDType(word)
	if err == nil && !d.KV {
		err = fmt.Errorf("%s is no format of a KV cache (want bf16, fp8, int8 or nvfp4)", d.Name)
	}
	if err != nil {
		return fmt.Errorf("--kv-dtype: %w", err)
	}
	in.q.Setup.KV, in.origins["kv_dtype"] = d, origin
	return nil
}

// takeSizes takes batch, context, degree and what else shares the step.
func (in *inputs) takeSizes() {
	take := func(name string, flag int, told float64) float64 {
		switch {
		case in.cmd.Flags().Changed(name):
			in.origins[name] = fromFlag
			return float64(flag)
		case told >= 1:
			in.origins[name] = fromEngine
			return told
		}
		in.origins[name] = fromAssumed
		return float64(flag)
	}
	q := in.q
	q.Batch = take("batch", in.batch, in.told.running)
	q.Context = take("context", in.context, in.told.context)
	q.Setup.TP = int(take("tp", in.tp, float64(in.told.tp)))
	q.Prompt, q.Shared, q.Adapters = float64(in.prompt), float64(in.shared), float64(in.adapters)
	q.Captures, q.SMClockHz, q.HourUSD = in.captures, in.clockMHz*1e6, in.usd
	if in.adapters > 0 {
		q.Rank = take("lora-rank", in.rank, 0)
		in.origins["lora_rank"] = in.origins["lora-rank"]
		delete(in.origins, "lora-rank")
	}
}

// takeSpeculation reads how many tokens are drafted, how many of them are accepted, and by which model.
func (in *inputs) takeSpeculation() error {
	in.q.TryDrafts, in.q.TryAccepted = tryDrafts, tryAcceptance
	if in.speculative == "" {
		return nil
	}
	drafts, acceptance, both := strings.Cut(in.speculative, ",")
	n, err := strconv.Atoi(strings.TrimSpace(drafts))
	if err != nil || n < 1 {
		return fmt.Errorf("--speculative: %q is not N,ACCEPTANCE, as in 3,0.7", in.speculative)
	}
	in.q.Drafts, in.q.Acceptance, in.origins["acceptance"] = float64(n), tryAcceptance, fromAssumed
	if both {
		part, err := strconv.ParseFloat(strings.TrimSpace(acceptance), 64)
		if err != nil || !(part >= 0 && part <= 1) {
			return fmt.Errorf("--speculative: %q is no part of one: want N,ACCEPTANCE, as in 3,0.7", acceptance)
		}
		in.q.Acceptance, in.origins["acceptance"] = part, fromFlag
	}
	if in.draft == "" {
		return nil
	}
	c, _, err := findModel(in.draft)
	if err != nil {
		return fmt.Errorf("--draft-model: %w", err)
	}
	draft := roofline.Setup{Spec: c.Model, GPU: in.q.Setup.GPU, Weights: c.Weights, KV: in.q.Setup.KV, TP: in.q.Setup.TP}
	if draft.Weights.Bits == 0 {
		word, ok := hardware.PublishedDType(in.draft)
		if !ok {
			word = "bf16"
		}
		if draft.Weights, err = hardware.LookupDType(word); err != nil {
			return fmt.Errorf("--draft-model: %w", err)
		}
	}
	in.q.Draft = &draft
	return nil
}

// takeComparisons chooses what the step is compared with.
func (in *inputs) takeComparisons() error {
	gpu := in.q.Setup.GPU
	name := in.versus
	if name == "" {
		name = neighbour(gpu.Name)
	}
	other, err := hardware.LookupGPU(name)
	if err != nil {
		return fmt.Errorf("--versus: %w", err)
	}
	in.q.Other, in.q.OtherEta = &other, etaOf(verdict.EtaOf(other))
	in.q.LowClockHz = lowClockPart * cmp.Or(in.q.SMClockHz, gpu.RateClockHz)
	return nil
}

// neighbour is the GPU that a GPU is compared with unless another is named: the next that data centers buy.
func neighbour(name string) string {
	switch {
	case strings.Contains(name, "H100"):
		return "h200"
	case strings.Contains(name, "H200"):
		return "b200"
	case strings.Contains(name, "L4"):
		return "a100"
	}
	return "h100"
}

func etaOf(e verdict.Eta) roofline.Eta { return roofline.Eta(e) }

// findModel returns a model by its name or its file, and whether it was read from a file.
func findModel(name string) (hardware.Config, bool, error) {
	path, dir := name, false
	st, err := os.Stat(path)
	if err == nil && st.IsDir() {
		path, dir = filepath.Join(path, "config.json"), true
		st, err = os.Stat(path)
	}
	switch {
	case err == nil && st.Mode().IsRegular():
		c, err := readModelFile(path)
		return c, true, err
	case strings.HasSuffix(name, ".json"):
		return hardware.Config{}, false, fmt.Errorf("there is no file %s", name)
	}
	m, err := hardware.LookupModel(name)
	if err != nil && dir {
		err = fmt.Errorf("there is no config.json in %s", name)
	}
	return hardware.Config{Model: m}, false, err
}

// readModelFile reads a config.json. A model that has no name gets that of the directory, or that of a file which is not
// named as all of them are.
func readModelFile(path string) (hardware.Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return hardware.Config{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	c, err := hardware.ReadConfig(f)
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	if full, err := filepath.Abs(path); err == nil && c.Model.Name == "" {
		if c.Model.Name = filepath.Base(filepath.Dir(full)); filepath.Base(full) != "config.json" {
			c.Model.Name = strings.TrimSuffix(filepath.Base(full), ".json")
		}
	}
	return c, nil
}
