package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/roofline"
	"github.com/tpotscope/tpotscope/exporters/report"
)

// Where an input comes from.
const (
	fromFlag    = "flag"
	fromConfig  = "configuration"
	fromFile    = "config.json"
	fromEngine  = "engine"
	fromDriver  = "driver"
	fromName    = "name"
	fromAssumed = "assumed"

	fromSimulation = "simulated driver"
)

// Defaults of what neither a flag nor an engine tells.
const (
	defaultContext = 4096
	tryDrafts      = 3
	tryAcceptance  = 0.7
	lowClockPart   = 0.8 // of the clock that the sheet assumes
	mostOfAnything = 1e9 // MHz, dollars, tokens: what is more is a slip
)

// rooflineOptions are the flags of roofline.
type rooflineOptions struct {
	model, gpu, dtype, kvDType, engine, draft, versus, speculative string
	batch, context, tp, prompt, shared, adapters, rank             int
	captures                                                       []int
	clockMHz, usd                                                  float64
	json, verbose                                                  bool
}

func (a *app) rooflineCommand() *cobra.Command {
	var o rooflineOptions
	cmd := &cobra.Command{
		Use: "roofline", GroupID: "check", Short: "the least time a token can take, and what would change it",
		Long: `Roofline computes what one decode step has to move and to calculate, the least
time that takes at the GPU's peaks, and the time at what is achievable of them.
Then it changes one thing at a time. It measures nothing.

What no flag says is asked of a running engine (--engine, the configuration's
first target, or whoever answers on the usual local ports) and of the driver.
The output says where each input comes from, and marks what is assumed.

"critical batch" is the number of tokens in a step from which arithmetic limits
the products with the weights; above the "critical context" memory limits the
step at any batch. "launches" are in no figure: they add to every one.

--model takes a name such as Llama-3.1-8B, meta-llama/Llama-3.1-8B-Instruct or
llama3.1:8b, or a config.json, or the directory that holds one. A suffix such as
-AWQ or -FP8 tells the format of the weights. Formats are
` + wrap(formats(), "  ") + `
and w4_g64, w8_g128_sym and the like for weights in groups.`,
		Example: `  tpotscope roofline --model Llama-3.1-8B --gpu h100 --batch 16 --context 4096
  tpotscope roofline --model ./model/config.json --gpu h200 --tp 2 --json
  tpotscope roofline --model gpt-oss-120b --gpu h100 --batch 64 --gpu-hour-usd 2
  tpotscope roofline --model Llama-3.1-70B --gpu h100 --tp 4 --batch 8 \
    --speculative 3,0.7 --draft-model Llama-3.2-1B
  tpotscope roofline --engine http://127.0.0.1:8000`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := a.question(cmd, &o)
			if err != nil {
				return err
			}
			origins := in.origins
			answer, err := roofline.Ask(*in.q)
			if err != nil {
				return usage(cmd, err)
			}
			answer.Notes = append(answer.Notes, in.file.Notes...)
			answer.Warning = append(answer.Warning, in.file.Doubts...)
			answer.Origins, answer.Simulated = origins, origins["gpu"] == fromSimulation
			for _, name := range inputOrder {
				if origins[name] == fromAssumed {
					answer.Assumed = append(answer.Assumed, name+": no flag and no engine told")
				}
			}
			if o.json {
				return report.RooflineJSON(a.out, answer)
			}
			return report.Roofline(a.out, answer, a.reportOptions(o.verbose))
		},
	}
	o.register(cmd)
	return cmd
}

// inputOrder is the order in which inputs are told.
var inputOrder = []string{"dtype", "kv_dtype", "batch", "context", "tp", "acceptance", "lora_rank"}

func (o *rooflineOptions) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&o.model, "model", "", "name of a model, or its config.json")
	fl.StringVar(&o.gpu, "gpu", "", "GPU, as in h100, l40s or \"NVIDIA H100 NVL\"")
	fl.StringVar(&o.dtype, "dtype", "", "number format of the weights (default: as the model is published)")
	fl.StringVar(&o.kvDType, "kv-dtype", "", "number format of the KV cache (default bf16)")
	fl.IntVar(&o.batch, "batch", 1, "sequences that decode together")
	fl.IntVar(&o.context, "context", defaultContext, "tokens of context of each")
	fl.IntVar(&o.tp, "tp", 1, "tensor-parallel degree")
	fl.StringVar(&o.engine, "engine", "", "base URL of an engine to ask")
	fl.IntVar(&o.prompt, "prefill-tokens", 0, "prompt tokens that share the step")
	fl.IntVar(&o.shared, "shared-prefix", 0, "tokens of context that all sequences have in common")
	fl.StringVar(&o.speculative, "speculative", "", "`N,ACCEPTANCE`: tokens drafted a step, and the part accepted (default "+strconv.FormatFloat(tryAcceptance, 'g', -1, 64)+")")
	fl.StringVar(&o.draft, "draft-model", "", "model that drafts: a name, or its config.json")
	fl.IntVar(&o.adapters, "adapters", 0, "LoRA adapters in use in a step")
	fl.IntVar(&o.rank, "lora-rank", 16, "rank of each adapter")
	fl.IntSliceVar(&o.captures, "capture-sizes", nil, "batch sizes that graphs are captured for, as in 1,2,4,8,16")
	fl.Float64Var(&o.clockMHz, "sm-clock", 0, "SM clock in `MHz` (default: that of the data sheet's rates)")
	fl.StringVar(&o.versus, "versus", "", "another GPU to compare with")
	fl.Float64Var(&o.usd, "gpu-hour-usd", 0, "price of an hour of one GPU, for the price of 1M output tokens")
	fl.BoolVar(&o.json, "json", false, "print the answer as JSON (schema "+roofline.Schema+")")
	fl.BoolVarP(&o.verbose, "verbose", "v", false, "print everything, however long")
}

// formats are the names of number formats, for help texts.
func formats() string {
	var names []string
	for _, d := range hardware.DTypes() {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}

// inputs gathers a question, each input with where it comes from.
type inputs struct {
	*rooflineOptions
	cmd     *cobra.Command
	q       *roofline.Question
	origins map[string]string
	file    hardware.Config // of the model, with what its counts leave out
	told    told            // by the engine and the configuration
}

// question puts together what is asked, from flags, files, the engine and the driver.
func (a *app) question(cmd *cobra.Command, o *rooflineOptions) (*inputs, error) {
	cfg, err := a.load(nil)
	if err != nil {
		return nil, err
	}
	in := &inputs{rooflineOptions: o, cmd: cmd, q: &roofline.Question{}, origins: map[string]string{}}
	if err := in.checkFlags(); err != nil {
		return nil, usage(cmd, err)
	}
	if o.engine != "" || o.model == "" {
		if in.told, err = a.askEngine(cmd.Context(), &cfg, o.engine); err != nil {
			return nil, err
		}
	}
	if err := in.takeModel(); err != nil {
		return nil, usage(cmd, err)
	}
	in.takeSizes()
	if err := a.takeGPU(cmd.Context(), &cfg, in); err != nil {
		return nil, err
	}
	if err := errors.Join(in.takeSpeculation(), in.takeComparisons()); err != nil {
		return nil, usage(cmd, err)
	}
	return in, nil
}

// checkFlags names every flag whose value cannot be meant.
func (in *inputs) checkFlags() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value float64
		least float64
	}{
		{"batch", float64(in.batch), 1},
		{"context", float64(in.context), 1},
		{"tp", float64(in.tp), 1},
		{"prefill-tokens", float64(in.prompt), 0},
		{"shared-prefix", float64(in.shared), 0},
		{"adapters", float64(in.adapters), 0},
		{"lora-rank", float64(in.rank), 1},
		{"sm-clock", in.clockMHz, 0},
		{"gpu-hour-usd", in.usd, 0},
	} {
		switch {
		case f.value < f.least:
			errs = append(errs, fmt.Errorf("--%s: %g is less than %g", f.name, f.value, f.least))
		case !(f.value <= mostOfAnything):
			errs = append(errs, fmt.Errorf("--%s: %g is absurd", f.name, f.value))
		}
	}
	for _, size := range in.captures {
		if size < 1 {
			errs = append(errs, fmt.Errorf("--capture-sizes: %d is less than 1", size))
		}
	}
	if in.engine != "" {
		if err := agent.CheckURL(in.engine); err != nil {
			errs = append(errs, fmt.Errorf("--engine: %w: want http://HOST:PORT", err))
		}
	}
	if in.shared > in.context && in.context > 0 {
		errs = append(errs, fmt.Errorf("--shared-prefix: %d is more than --context, %d", in.shared, in.context))
	}
	if in.draft != "" && in.speculative == "" {
		errs = append(errs, errors.New("--draft-model needs --speculative"))
	}
	return errors.Join(errs...)
}
