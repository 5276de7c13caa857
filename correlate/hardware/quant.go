package hardware

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// rawQuant is the quantization_config of a config.json, in the spellings of the methods that write one.
type rawQuant struct {
	Method    string          `json:"quant_method"`
	Algo      string          `json:"quant_algo"`
	KVAlgo    string          `json:"kv_cache_quant_algo"`
	Bits      int             `json:"bits"`
	GroupSize int             `json:"group_size"`
	Sym       *bool           `json:"sym"`
	ZeroPoint *bool           `json:"zero_point"`
	Block     []int           `json:"weight_block_size"`
	Load4Bit  bool            `json:"load_in_4bit"`
	Load8Bit  bool            `json:"load_in_8bit"`
	Ignore    json.RawMessage `json:"ignore"`
	Skip      json.RawMessage `json:"modules_to_not_convert"`
	KVScheme  *rawScheme      `json:"kv_cache_scheme"`
	Groups    map[string]struct {
		Weights *rawScheme `json:"weights"`
		Inputs  *rawScheme `json:"input_activations"`
	} `json:"config_groups"`
}

type rawScheme struct {
	Bits      int    `json:"num_bits"`
	Type      string `json:"type"`
	GroupSize int    `json:"group_size"`
	Symmetric *bool  `json:"symmetric"`
}

// storage fills in how the weights and the cache are stored.
func (c *Config) storage(raw *rawConfig) error {
	plain := raw.DType
	if plain == "" {
		plain = raw.NewDType
	}
	if plain != "" {
		d, err := LookupDType(strings.TrimPrefix(plain, "torch."))
		if err != nil {
			return fmt.Errorf("torch_dtype: %w", err)
		}
		c.DType = d.Name
	}
	q := raw.Quant
	if q == nil {
		return nil
	}
	c.Method = q.Method
	if q.Method == "" {
		c.Method = q.Algo
	}
	for _, part := range []json.RawMessage{q.Ignore, q.Skip} {
		if len(part) > 0 && !bytes.Equal(part, []byte("null")) {
			c.Unquantized = string(part)
		}
	}
	switch {
	case q.KVScheme != nil && q.KVScheme.Bits == 8, strings.EqualFold(q.KVAlgo, "fp8"):
		c.KVDType = "fp8"
	case strings.EqualFold(q.KVAlgo, "nvfp4"):
		c.KVDType = "nvfp4"
	}
	name, err := q.dtype()
	if err != nil {
		return fmt.Errorf("quantization_config: %w", err)
	}
	c.DType = name
	return nil
}

// dtype returns the table's name for the storage of the quantized weights.
func (q *rawQuant) dtype() (string, error) {
	switch method := strings.ToLower(q.Method); method {
	case "fp8", "fbgemm_fp8":
		if len(q.Block) == 2 {
			return "fp8_block", nil
		}
		return "fp8", nil
	case "mxfp4":
		return "mxfp4", nil
	case "awq", "gptq":
		return q.grouped(method)
	case "bitsandbytes":
		switch {
		case q.Load4Bit:
			return "nf4", nil
		case q.Load8Bit:
			return "w8a16", nil
		}
		return "", errors.New("load_in_4bit, load_in_8bit: neither is set")
	case "compressed-tensors":
		return q.compressed()
	case "modelopt", "modelopt_fp4", "":
		switch strings.ToLower(q.Algo) {
		case "fp8":
			return "fp8", nil
		case "nvfp4":
			return "nvfp4", nil
		case "":
			return "", errors.New("quant_method: missing")
		}
		return "", unknown("quant_algo", q.Algo, []string{"FP8", "NVFP4"})
	default:
		return "", unknown("quant_method", q.Method, []string{"fp8", "fbgemm_fp8", "mxfp4", "awq", "gptq", "bitsandbytes", "compressed-tensors", "modelopt"})
	}
}

// grouped names a four-bit or eight-bit format with scales for groups of weights.
func (q *rawQuant) grouped(method string) (string, error) {
	switch {
	case q.Bits == 8:
		return "w8a16", nil
	case q.Bits != 4:
		return "", fmt.Errorf("bits: %d is no width of %s that is known", q.Bits, method)
	case q.GroupSize == 32:
		return "int4_g32", nil
	case q.Sym != nil && *q.Sym, q.ZeroPoint != nil && !*q.ZeroPoint:
		return "int4_sym", nil
	}
	return "awq", nil
}

// compressed names the format of a compressed-tensors file, whose groups must agree.
func (q *rawQuant) compressed() (string, error) {
	var name string
	for _, key := range slices.Sorted(maps.Keys(q.Groups)) {
		g := q.Groups[key]
		if g.Weights == nil {
			return "", errors.New("config_groups: a group without weights")
		}
		n, err := g.Weights.dtype(g.Inputs != nil)
		if err != nil {
			return "", err
		}
		if name != "" && n != name {
			return "", fmt.Errorf("config_groups: %s and %s in one file", min(n, name), max(n, name))
		}
		name = n
	}
	if name == "" {
		return "", errors.New("config_groups: missing")
	}
	return name, nil
}

func (s *rawScheme) dtype(activations bool) (string, error) {
	switch {
	case s.Type == "float" && s.Bits == 8:
		return "fp8", nil
	case s.Type == "float" && s.Bits == 4 && s.GroupSize == 32:
		return "mxfp4", nil
	case s.Type == "float" && s.Bits == 4:
		return "nvfp4", nil
	case s.Type == "int" && s.Bits == 8 && activations:
		return "int8", nil
	case s.Type == "int" && s.Bits == 8:
		return "w8a16", nil
	case s.Type == "int" && s.Bits == 4:
		q := rawQuant{Bits: 4, GroupSize: s.GroupSize, Sym: s.Symmetric}
		return q.grouped("compressed-tensors")
	}
	return "", fmt.Errorf("config_groups: %d-bit %q weights are no format that is known", s.Bits, s.Type)
}
