package llmsim

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// PlayerConfig says how a scenario's requests are sent.
type PlayerConfig struct {
	BaseURL     string // of the server, or of a proxy before it
	Direct      string // of the server, for the requests that the scenario's probe does not see; empty: BaseURL
	Model       string
	Now         func() timeline.Instant
	Epoch       timeline.Instant // when the scenario begins; the server's
	MaxInFlight int              // requests that may be open at once; those above it are sent late
	Text        bool             // use /v1/completions instead of chat
	Usage       bool             // ask for the usage chunk at the end
	Continuous  bool             // and for usage on every chunk
	TokenIDs    bool             // ask for token ids
	Free        bool             // the requests are none of the server's plan: ask for the fixed pace
	KeepTimes   bool             // keep the time of every token-bearing chunk
	Header      http.Header      // sent with every request
}

// DefaultInFlight is how many requests a player has open at once unless told otherwise.
const DefaultInFlight = 512

// Played is what a client saw of one request.
type Played struct {
	Index                         int // of the scenario's request
	Sent, Head, First, Last, Done timeline.Instant
	Status                        int  // of HTTP; zero without a response
	Chunks                        int  // that bore text
	Tokens                        int  // by the best count the stream told: usage, else token ids, else chunks
	Terminal                      bool // the terminal marker came
	InBand                        bool // an error object came
	Err                           error
	Times                         []timeline.Instant // of the chunks, with KeepTimes
}

// TPOT returns the mean time per output token after the first chunk, zero if there were not two chunks.
func (p *Played) TPOT(firstTokens int) time.Duration {
	if p.Tokens <= firstTokens || p.Last <= p.First {
		return 0
	}
	return p.Last.Sub(p.First) / time.Duration(p.Tokens-firstTokens)
}

// Play sends requests at the times of their arrival and reads the replies. It returns when all have ended or ctx has,
// with one record for each request that was sent, in the order of requests.
func Play(ctx context.Context, cfg PlayerConfig, requests []scenario.Request) ([]Played, error) {
	if cfg.Now == nil {
		return nil, errors.New("play scenario: no clock")
	}
	if cfg.MaxInFlight <= 0 {
		cfg.MaxInFlight = DefaultInFlight
	}
	p := player{
		cfg: cfg, base: strings.TrimRight(cfg.BaseURL, "/"),
		http: &http.Client{Transport: &http.Transport{
			Proxy: nil, MaxIdleConnsPerHost: cfg.MaxInFlight, DisableCompression: true, IdleConnTimeout: 90 * time.Second,
		}},
		played: make([]Played, len(requests)),
	}
	defer p.http.CloseIdleConnections()
	wt := newWaiter(ctx, false)
	defer wt.close()
	slots := make(chan struct{}, cfg.MaxInFlight) // bounds the connections
	var open sync.WaitGroup
	defer open.Wait()
	for i := range requests {
		r := &requests[i]
		if wt.wait(cfg.Epoch.Add(r.Arrival).Sub(cfg.Now())) != nil {
			return p.played[:i], nil
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return p.played[:i], nil
		}
		open.Go(func() {
			defer func() { <-slots }()
			p.one(ctx, r, &p.played[i])
		})
	}
	return p.played, nil
}

// player sends requests.
type player struct {
	cfg    PlayerConfig
	base   string
	http   *http.Client
	played []Played
}

// one sends a request and reads its reply to the end.
func (p *player) one(ctx context.Context, r *scenario.Request, out *Played) {
	out.Index = r.Index
	req, err := p.request(ctx, r)
	if err != nil {
		out.Err = fmt.Errorf("play request %d: %w", r.Index, err)
		return
	}
	out.Sent = p.cfg.Now()
	resp, err := p.http.Do(req)
	out.Head = p.cfg.Now()
	if err != nil {
		out.Head, out.Done = 0, out.Head
		out.Err = fmt.Errorf("play request %d: %w", r.Index, err)
		return
	}
	defer func() { _ = resp.Body.Close() }() // only read from
	out.Status = resp.StatusCode
	if resp.StatusCode == http.StatusOK {
		if err := p.read(bufio.NewReaderSize(resp.Body, 16<<10), out); err != nil {
			out.Err = fmt.Errorf("play request %d: %w", r.Index, err)
		}
	}
	out.Done = p.cfg.Now()
}

// baseOf returns where a request goes.
func (p *player) baseOf(r *scenario.Request) string {
	if p.cfg.Direct != "" && !r.Observed {
		return strings.TrimRight(p.cfg.Direct, "/")
	}
	return p.base
}

func (p *player) request(ctx context.Context, r *scenario.Request) (*http.Request, error) {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body := map[string]any{"model": p.cfg.Model, "stream": true, "max_tokens": r.OutputTokens}
	path := "/v1/chat/completions"
	if p.cfg.Text {
		path, body["prompt"] = "/v1/completions", "simulated"
	} else {
		body["messages"] = []message{{"user", "simulated"}}
	}
	if p.cfg.Usage || p.cfg.Continuous {
		body["stream_options"] = map[string]bool{"include_usage": true, "continuous_usage_stats": p.cfg.Continuous}
	}
	if p.cfg.TokenIDs {
		body["return_token_ids"] = true
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("write body: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.baseOf(r)+path, bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	maps.Copy(req.Header, p.cfg.Header)
	req.Header.Set("Content-Type", "application/json")
	name := strconv.Itoa(r.Index)
	if p.cfg.Free {
		name = "none"
	}
	req.Header.Set(RequestHeader, name)
	return req, nil
}

// chunk is what a player reads of a chunk.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		Text     string          `json:"text"`
		TokenIDs json.RawMessage `json:"token_ids"`
	} `json:"choices"`
	Usage *struct {
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// read reads a stream to its end.
func (p *player) read(in *bufio.Reader, out *Played) error {
	told, ids := 0, 0
	for {
		line, err := readLine(in)
		at := p.cfg.Now()
		if err != nil {
			out.Tokens = cmp.Or(max(told, 0), ids, out.Chunks)
			if out.Terminal {
				return nil
			}
			return fmt.Errorf("read stream: %w", err)
		}
		data, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r\n"), []byte("data: "))
		switch {
		case !ok:
			continue
		case bytes.Equal(data, []byte("[DONE]")):
			out.Terminal = true
			continue
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("read chunk: %w", err)
		}
		if c.Usage != nil {
			told = c.Usage.Completion
		}
		out.InBand = out.InBand || len(c.Error) > 0
		if bears, n := c.tokens(); bears {
			p.mark(out, at)
			ids += n
		}
	}
}

// tokens reports whether the chunk bears text, and how many token ids it lists.
func (c *chunk) tokens() (bears bool, ids int) {
	for i := range c.Choices {
		ch := &c.Choices[i]
		if ch.Delta.Content == "" && ch.Text == "" {
			continue
		}
		bears = true
		if list := ch.TokenIDs; len(list) > 2 && list[0] == '[' {
			ids += 1 + bytes.Count(list, []byte{','})
		}
	}
	return bears, ids
}

// maxLine bounds a line of a stream.
const maxLine = 4 << 20

var errLine = errors.New("line too long")

// readLine returns the next line. It is valid until the next call.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) && len(long) <= maxLine {
		line, err = in.ReadSlice('\n')
		long = append(long, line...)
	}
	if len(long) > maxLine {
		return nil, errLine
	}
	return long, err
}

func (p *player) mark(out *Played, at timeline.Instant) {
	if out.Chunks == 0 {
		out.First = at
	}
	out.Last = at
	out.Chunks++
	if p.cfg.KeepTimes {
		out.Times = append(out.Times, at)
	}
}
