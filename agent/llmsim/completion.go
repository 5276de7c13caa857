package llmsim

import (
	"cmp"
	"encoding/json"
	"net/http"
	"time"
)

// Bounds of what a request may ask for.
const (
	maxBody    = 8 << 20
	maxTokens  = 1 << 20
	maxContext = 131072
)

// operation is which of the two completion endpoints was asked.
type operation uint8

const (
	chat operation = iota
	text
)

// asked is what is read of a request's body. What it says is counted, and not kept.
type asked struct {
	Model     string          `json:"model"`
	Messages  json.RawMessage `json:"messages"`
	Prompt    json.RawMessage `json:"prompt"`
	Stream    bool            `json:"stream"`
	N         int             `json:"n"`
	MaxTokens int             `json:"max_tokens"`
	MaxNew    int             `json:"max_completion_tokens"`
	TokenIDs  bool            `json:"return_token_ids"`
	Options   struct {
		Usage      bool `json:"include_usage"`
		Continuous bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

// event is one moment at which a reply gets tokens.
type event struct {
	at     time.Duration // since the epoch
	tokens int
}

// reply is one answer in the making.
type reply struct {
	op      operation
	ask     asked
	fault   Fault
	id      string
	created int64
	prompt  int // tokens
	events  []event
	total   int // tokens in events
	finish  string
	free    bool
	cutOff  time.Duration // not zero: the plan ends then, and the reply with it, unfinished
}

func (s *Server) serveCompletion(w http.ResponseWriter, r *http.Request, op operation) {
	rep, status, why := s.accept(r, op)
	if why != "" {
		writeError(w, status, why)
		return
	}
	if rep.free {
		s.live.begin()
		defer s.live.end()
	}
	if rep.ask.Stream {
		s.stream(w, r, &rep)
		return
	}
	s.whole(w, r, &rep)
}

// accept reads a request and plans its reply. A reason says that there is none, and the status says how.
func (s *Server) accept(r *http.Request, op operation) (reply, int, string) {
	rep := reply{op: op, fault: s.cfg.Fault, created: time.Now().Unix(), finish: "length"}
	if list := r.Header.Get(FaultHeader); list != "" {
		f, err := ParseFault(list)
		if err != nil {
			return rep, http.StatusBadRequest, err.Error()
		}
		rep.fault = f
	}
	if rep.fault.Status != 0 {
		return rep, rep.fault.Status, "simulated error"
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody)).Decode(&rep.ask); err != nil {
		return rep, http.StatusBadRequest, "body is not the JSON of a completion request"
	}
	switch {
	case rep.ask.N > 1:
		return rep, http.StatusBadRequest, "n: the simulation answers with one choice"
	case rep.ask.MaxTokens < 0 || rep.ask.MaxTokens > maxTokens || rep.ask.MaxNew < 0 || rep.ask.MaxNew > maxTokens:
		return rep, http.StatusBadRequest, "max_tokens: out of range"
	case op == chat && len(rep.ask.Messages) == 0:
		return rep, http.StatusBadRequest, "messages: missing"
	case op == text && len(rep.ask.Prompt) == 0:
		return rep, http.StatusBadRequest, "prompt: missing"
	}
	prefix := "chatcmpl-"
	if op == text {
		prefix = "cmpl-"
	}
	rep.id = prefix + serial(s.ids.Add(1))
	planned, ok, err := s.claim(r)
	switch {
	case err != nil:
		return rep, http.StatusConflict, err.Error()
	case ok:
		rep.prompt = planned.PromptTokens
		rep.events = moments(planned.Times(), rep.fault)
		if planned.Finish == 0 {
			rep.finish, rep.cutOff = "abort", cmp.Or(planned.Aborted, s.cfg.Plan.Duration())
		}
	default:
		rep.free = true
		// Four bytes of JSON a token is near enough for a server that has no tokenizer.
		rep.prompt = max(1, (len(rep.ask.Messages)+len(rep.ask.Prompt))/4)
		rep.events = moments(s.paced(&rep.ask), rep.fault)
	}
	for _, e := range rep.events {
		rep.total += e.tokens
	}
	return rep, 0, ""
}

// paced returns the times of a reply at the fixed pace, from now.
func (s *Server) paced(a *asked) []time.Duration {
	n := s.cfg.Free.Tokens
	if limit := max(a.MaxTokens, a.MaxNew); limit > 0 {
		n = limit
	}
	first := s.elapsed() + s.cfg.Free.TTFT
	times := make([]time.Duration, n)
	for i := range times {
		times[i] = first + time.Duration(i)*s.cfg.Free.TPOT
	}
	return times
}

// moments gathers tokens into the moments at which they leave: those of one time come together, as they do when an
// engine accepts several in a step; a merging fault holds tokens back until it has its number or the last is there.
func moments(times []time.Duration, f Fault) []event {
	events := make([]event, 0, len(times))
	for i, at := range times {
		last := len(events) - 1
		joins := i > 0 && (at == times[i-1] || f.Merge > 1 && events[last].tokens < f.Merge)
		if joins {
			events[last].tokens++
			events[last].at = at + f.Slow
			continue
		}
		events = append(events, event{at + f.Slow, 1})
	}
	return events
}

// usage is the count of tokens as the API tells it.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
}

// whole answers in one piece when the last token is due.
func (s *Server) whole(w http.ResponseWriter, r *http.Request, rep *reply) {
	due := rep.cutOff
	if len(rep.events) > 0 {
		due = max(due, rep.events[len(rep.events)-1].at)
	}
	wt := newWaiter(r.Context(), s.cfg.Precise)
	defer wt.close()
	if wt.wait(due-s.elapsed()) != nil {
		return
	}
	if rep.free {
		s.live.whole(rep, s.cfg.Free)
	}
	var content []byte
	for i := range rep.total {
		content = append(content, word(i)...)
	}
	choice := map[string]any{"index": 0, "logprobs": nil, "finish_reason": rep.finish, "stop_reason": nil}
	object := "chat.completion"
	if rep.op == chat {
		choice["message"] = map[string]any{"role": "assistant", "content": string(content)}
	} else {
		choice["text"], object = string(content), "text_completion"
	}
	if rep.ask.TokenIDs {
		ids := make([]int, rep.total)
		for i := range ids {
			ids[i] = tokenID(i)
		}
		choice["token_ids"] = ids
	}
	writeJSON(w, map[string]any{
		"id": rep.id, "object": object, "created": rep.created, "model": s.cfg.Model, "choices": []any{choice},
		"usage": usage{rep.prompt, rep.prompt + rep.total, rep.total},
	})
}

func writeError(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client may be gone, and there is nobody else to tell
		"error": map[string]any{"message": why, "type": http.StatusText(status), "param": nil, "code": status},
	})
}
