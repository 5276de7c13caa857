package scrape

import (
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// identityRetry is how long an engine that did not tell its identity is left alone before it is asked again.
const identityRetry = 30 * time.Second

// maxName bounds a name that an engine tells of itself.
const maxName = 256

// modelsPage is what is read of GET /v1/models: the OpenAI list with what vLLM, SGLang and llama.cpp add to it.
type modelsPage struct {
	Data []struct {
		ID          string  `json:"id"`
		Root        string  `json:"root"`
		Parent      *string `json:"parent"` // set for an adapter
		MaxModelLen int     `json:"max_model_len"`
		Meta        struct {
			Parameters float64 `json:"n_params"`
			Size       float64 `json:"size"`
			Context    int     `json:"n_ctx_train"`
		} `json:"meta"`
	} `json:"data"`
}

// askIdentity asks the engine who it is, and tells the sink. id holds what its metrics told.
func (s *Scraper) askIdentity(ctx context.Context, id Identity) {
	var page modelsPage
	if !s.ask(ctx, "/v1/models", &page) {
		return
	}
	for _, m := range page.Data {
		if m.Parent != nil && *m.Parent != "" {
			continue
		}
		id.Model, id.Root, id.MaxContext = clip(m.ID), clip(m.Root), max(m.MaxModelLen, m.Meta.Context)
		id.Parameters, id.WeightBytes = m.Meta.Parameters, m.Meta.Size
		break
	}
	switch id.Engine {
	case "vllm":
		var v struct {
			Version string `json:"version"`
		}
		if s.ask(ctx, "/version", &v) {
			id.Version = clip(v.Version)
		}
	case "sglang":
		s.askSGLang(ctx, &id)
	case "llama.cpp":
		var p struct {
			Slots int    `json:"total_slots"`
			Build string `json:"build_info"`
		}
		if s.ask(ctx, "/props", &p) {
			id.Slots, id.Version = max(0, p.Slots), clip(p.Build)
		}
	}
	s.asked, s.slots = true, float64(id.Slots)
	if s.sink.Identity != nil {
		s.sink.Identity(id)
	}
}

// askSGLang reads the server arguments that matter here, by name alone: the page holds secrets too.
func (s *Scraper) askSGLang(ctx context.Context, id *Identity) {
	var v struct {
		DType   string `json:"dtype"`
		Quant   string `json:"quantization"`
		KV      string `json:"kv_cache_dtype"`
		TP      int    `json:"tp_size"`
		Version string `json:"version"`
	}
	if !s.ask(ctx, "/server_info", &v) && !s.ask(ctx, "/get_server_info", &v) {
		return
	}
	id.Quant, id.Version, id.TP = clip(v.Quant), clip(v.Version), max(0, v.TP)
	if v.DType != "auto" {
		id.DType = clip(v.DType)
	}
	if v.KV != "auto" {
		id.KVDType = clip(v.KV)
	}
}

// ask reads one JSON page of the engine into v, and reports whether it could.
func (s *Scraper) ask(ctx context.Context, path string, v any) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	body, err := s.get(ctx, path, maxIdentityBytes)
	return err == nil && json.Unmarshal(body, v) == nil
}

// clip makes a name from outside one that a log, a label and a file can hold: bounded, and without what does not print.
func clip(name string) string {
	var b strings.Builder
	for _, r := range name {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > maxName {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}
