package hardware

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// storage fills in how the weights and the cache are stored. Top is the whole file, text its language part.
func (c *Config) storage(top, text *fields) {
	for _, f := range []*fields{top, text} {
		for _, name := range []string{"torch_dtype", "dtype"} {
			word := strings.TrimPrefix(f.str(name), "torch.")
			if word == "" || c.DType != "" {
				continue
			}
			d, err := LookupDType(word)
			if err != nil {
				f.fault(name, err.Error())
				continue
			}
			c.DType, c.Weights = d.Name, d
		}
	}
	q := top.sub("quantization_config")
	if q == nil && text != top {
		q = text.sub("quantization_config")
	}
	if q != nil {
		c.quantized(q)
	}
}

// quantized takes over a quantization_config.
func (c *Config) quantized(q *fields) {
	if inner := q.sub("quantization"); inner != nil && !q.has("quant_method") { // modelopt's hf_quant_config.json
		q = inner
	}
	c.Method = cmp.Or(q.str("quant_method"), q.str("quant_algo"))
	c.KVDType = q.cache()
	d, ok := q.weights()
	if !ok {
		return
	}
	left, told := q.unquantized()
	if len(left) > 0 {
		raw, _ := json.Marshal(left) // a list of names
		c.Unquantized = string(raw)
	}
	switch {
	case q.boolean("lm_head"), told && q.listsHead() && !slices.ContainsFunc(left, namesHead):
		d.HeadBits = d.Bits
	}
	d.BodyBits = c.bodyBits(d, left)
	if names := c.Model.uncounted(left); len(names) > 0 {
		c.Doubts = append(c.Doubts, fmt.Sprintf("quantization_config: %d of %d modules that it leaves out are not counted apart, such as %s: more may be read than is said",
			len(names), len(left), names[0][:min(len(names[0]), maxWord)]))
	}
	c.DType, c.Weights = d.Name, d
}

// unquantized returns the modules that the file lists as left out, and whether it has such a list.
func (f *fields) unquantized() (left []string, told bool) {
	for _, name := range []string{"ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers"} {
		if f.has(name) {
			left, told = append(left, f.list(name)...), true
		}
	}
	return left, told
}

// listsHead reports whether the method quantizes the head unless its list leaves it out.
func (f *fields) listsHead() bool {
	method := strings.ToLower(f.str("quant_method"))
	return method == "compressed-tensors" || strings.HasPrefix(method, "modelopt")
}

func namesHead(module string) bool { return strings.Contains(module, "lm_head") }

// cache returns the format of the KV cache that the file asks for, empty if it asks for none.
func (f *fields) cache() string {
	if s := f.sub("kv_cache_scheme"); s != nil && s.intOr("num_bits", 1, 64, 0) == 8 {
		if s.str("type") == "int" {
			return "int8"
		}
		return "fp8"
	}
	for _, part := range []*fields{f, f.sub("kv_cache_quant")} {
		if part == nil {
			continue
		}
		if name := part.str("kv_cache_quant_algo"); name != "" {
			d, err := LookupDType(name)
			if err != nil || !d.KV {
				part.fault("kv_cache_quant_algo", unknown("format of a cache", name, []string{"FP8", "INT8", "NVFP4"}).Error())
				return ""
			}
			return d.Name
		}
	}
	return ""
}

// quantMethods are the spellings that are known.
var quantMethods = []string{
	"fp8", "fbgemm_fp8", "mxfp4", "awq", "gptq", "auto-round", "bitsandbytes", "compressed-tensors", "modelopt", "modelopt_fp4",
}

// weights returns the format of the quantized weights, false after a fault.
func (f *fields) weights() (DType, bool) {
	switch method := strings.ToLower(f.str("quant_method")); method {
	case "fp8", "fbgemm_fp8":
		var block []int
		if f.read("weight_block_size", &block, "list of two sizes") && len(block) == 2 {
			return known("fp8_block")
		}
		return known("fp8")
	case "mxfp4":
		return known("mxfp4")
	case "awq", "gptq", "awq_marlin", "gptq_marlin", "auto-round", "intel/auto-round":
		return f.grouped()
	case "bitsandbytes":
		return f.bitsandbytes()
	case "compressed-tensors":
		return f.compressed()
	case "modelopt", "modelopt_fp4", "":
		return f.modelopt()
	default:
		f.fault("quant_method", unknown("quant_method", method, quantMethods).Error())
		return DType{}, false
	}
}

// known returns a format of the table by the name it has there.
func known(name string) (DType, bool) {
	d, err := LookupDType(name)
	return d, err == nil
}

func (f *fields) bitsandbytes() (DType, bool) {
	switch {
	case f.boolean("load_in_4bit") && f.boolean("bnb_4bit_use_double_quant"):
		return known("nf4_double")
	case f.boolean("load_in_4bit"):
		return known("nf4")
	case f.boolean("load_in_8bit"):
		return known("w8a16")
	}
	f.fault("load_in_4bit, load_in_8bit", "neither is set")
	return DType{}, false
}

// modelopt reads the names of NVIDIA's Model Optimizer.
func (f *fields) modelopt() (DType, bool) {
	name := f.str("quant_algo")
	switch strings.ToUpper(name) {
	case "FP8", "FP8_PER_CHANNEL_PER_TOKEN":
		return known("fp8")
	case "FP8_PB_WO":
		return known("fp8_block")
	case "NVFP4", "NVFP4_AWQ":
		return known("nvfp4")
	case "W4A16_AWQ", "INT4_AWQ":
		return groupedDType(4, f.intOr("group_size", 1, 1<<16, 128), true), true
	case "":
		if !f.has("quant_method") {
			f.fault("quant_method", "missing")
		} else {
			f.fault("quant_algo", "missing")
		}
		return DType{}, false
	}
	f.fault("quant_algo", unknown("quant_algo", name, []string{"FP8", "FP8_PB_WO", "NVFP4", "W4A16_AWQ"}).Error())
	return DType{}, false
}

// grouped reads a format with scales for groups of weights, in the fields of AutoGPTQ and AutoAWQ.
func (f *fields) grouped() (DType, bool) {
	bits, group := "bits", "group_size"
	if !f.has(bits) && f.has("w_bit") {
		bits, group = "w_bit", "q_group_size"
	}
	n := f.want(bits, 1, 64)
	if n == 0 {
		return DType{}, false
	}
	if n != 2 && n != 3 && n != 4 && n != 8 {
		f.fault(bits, fmt.Sprintf("%d is no width that is known (2, 3, 4, 8)", n))
		return DType{}, false
	}
	symmetric := f.has("sym") && f.boolean("sym") || f.has("zero_point") && !f.boolean("zero_point")
	return groupedDType(n, f.intOr(group, -1, 1<<16, 128), symmetric), true
}

// groupedDType is a format of so many bits with a 16-bit scale for each group of weights and, if it is not symmetric, a
// packed zero point. A group below one is a whole column, whose scale does not count.
func groupedDType(bits, group int, symmetric bool) DType {
	d := DType{Name: fmt.Sprintf("w%d", bits), Bits: float64(bits), HeadBits: 16, Math: "bf16", WeightsOnly: true}
	if group > 0 {
		d.Name += fmt.Sprintf("_g%d", group)
		d.Bits += 16 / float64(group)
		if !symmetric {
			d.Bits += float64(bits) / float64(group)
		}
	} else {
		d.Name += "_channel"
	}
	if symmetric {
		d.Name += "_sym"
	}
	for _, t := range dtypes { // the usual ones have names
		if t.WeightsOnly && t.Bits == d.Bits && (bits == 4 && group == 128 || bits == 8 && group <= 0) {
			return t
		}
	}
	return d
}

// parseGrouped reads a name that groupedDType made.
func parseGrouped(name string) (DType, bool) {
	for _, bits := range []int{2, 3, 4, 8} {
		rest, ok := strings.CutPrefix(name, fmt.Sprintf("w%d_", bits))
		if !ok {
			continue
		}
		rest, symmetric := strings.CutSuffix(rest, "_sym")
		if rest == "channel" {
			return groupedDType(bits, -1, symmetric), true
		}
		var group int
		if n, err := fmt.Sscanf(rest, "g%d", &group); err == nil && n == 1 && group > 0 && group <= 1<<16 && rest == fmt.Sprintf("g%d", group) {
			return groupedDType(bits, group, symmetric), true
		}
	}
	return DType{}, false
}

// compressed reads a compressed-tensors file, whose groups must agree.
func (f *fields) compressed() (DType, bool) {
	groups := f.sub("config_groups")
	if groups == nil || len(groups.m) == 0 {
		f.fault("config_groups", "missing")
		return DType{}, false
	}
	var one DType
	for _, key := range slices.Sorted(maps.Keys(groups.m)) {
		g := groups.sub(key)
		var w *fields
		if g != nil {
			w = g.sub("weights")
		}
		if w == nil {
			groups.fault(key, "a group without weights")
			return DType{}, false
		}
		d, ok := w.scheme(g.has("input_activations"))
		if !ok {
			return DType{}, false
		}
		if one.Name != "" && d.Name != one.Name {
			f.fault("config_groups", fmt.Sprintf("%s and %s in one file", min(d.Name, one.Name), max(d.Name, one.Name)))
			return DType{}, false
		}
		one = d
	}
	return one, true
}

// scheme reads how the weights of a group are stored.
func (f *fields) scheme(activations bool) (DType, bool) {
	bits, kind := f.want("num_bits", 1, 64), f.str("type")
	group := f.intOr("group_size", -1, 1<<16, -1)
	switch {
	case bits == 0:
		return DType{}, false
	case kind == "float" && bits == 8 && f.str("strategy") == "block":
		return known("fp8_block")
	case kind == "float" && bits == 8:
		return known("fp8")
	case kind == "float" && bits == 4 && group == 32:
		return known("mxfp4")
	case kind == "float" && bits == 4:
		return known("nvfp4")
	case kind == "int" && bits == 8 && activations:
		return known("int8")
	case kind == "int" && (bits == 4 || bits == 8):
		return groupedDType(bits, group, !f.has("symmetric") || f.boolean("symmetric")), true
	}
	f.fault("num_bits", fmt.Sprintf("%d-bit %q weights are no format that is known", bits, kind))
	return DType{}, false
}

// MeasuredDType is the format of weights of which only their number and their size are known, as engines tell of a file.
func MeasuredDType(parameters, bytes float64) (DType, bool) {
	bits := 8 * bytes / parameters
	if !(parameters > 0 && bits >= 1 && bits <= 32) {
		return DType{}, false
	}
	bits = math.Round(bits*1000) / 1000
	return DType{Name: fmt.Sprintf("%.3g-bit", bits), Bits: bits, HeadBits: bits, Math: "bf16", WeightsOnly: bits < 16}, true
}
