// Package llmsim is a simulated LLM server: an HTTP handler in the shape of vLLM's, which streams neutral words at the
// times that a scenario's timeline gives, tells the engine metrics of the same timeline, and says of itself that it is
// a simulation. It has an own writer of streams: what reads streams elsewhere shares no code with it, so that a
// misreading of the format shows.
//
// It holds no model and computes no time: those are the scenario's. Requests outside the scenario get a fixed pace.
package llmsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// RequestHeader names, in a request, the scenario's request that it plays: an index, or "none" for a request at the
// fixed pace. Without it a request plays the next one that none has claimed, in the order of arrival.
const RequestHeader = "X-Scenario-Request"

// FaultHeader sets, in a request, the fault of its reply, as [ParseFault] reads it.
const FaultHeader = "X-Sim-Fault"

// SimulatedHeader is set in every reply, so that none is taken for a real engine's.
const SimulatedHeader = "X-Simulated"

// Plan is what a server plays. [scenario.Timeline] is one. It is safe for concurrent use.
type Plan interface {
	Requests() []scenario.Request
	Engine(target int, t time.Duration) scenario.EngineState
	Duration() time.Duration
}

var _ Plan = (*scenario.Timeline)(nil)

// Pace is the fixed pace of requests outside the plan.
type Pace struct {
	TTFT   time.Duration
	TPOT   time.Duration
	Tokens int // for requests that do not say how many they want
}

// Config says what a server plays.
type Config struct {
	Model   string                  // the name it serves
	Now     func() timeline.Instant // the clock that it plays on
	Epoch   timeline.Instant        // when the plan begins
	Plan    Plan                    // nil: every request gets the fixed pace
	Target  int                     // the target of the plan whose engine this is
	Free    Pace
	Fault   Fault // of every reply, unless its request names another
	Precise bool  // wait by timers of the kernel, where there are such; the runtime's may be a millisecond late
}

// DefaultPace returns the pace of a small model on an idle server.
func DefaultPace() Pace {
	return Pace{TTFT: 50 * time.Millisecond, TPOT: 10 * time.Millisecond, Tokens: 16}
}

// Server is a simulated LLM server. Make one with [New].
type Server struct {
	cfg   Config
	model string // as JSON
	mux   *http.ServeMux
	ids   atomic.Uint64
	live  live

	mu      sync.Mutex
	order   []int                    // indices that may be unclaimed, by arrival
	planned map[int]scenario.Request // unclaimed
}

var _ http.Handler = (*Server)(nil)

// New returns a server.
func New(cfg Config) (*Server, error) {
	if cfg.Now == nil {
		return nil, errors.New("make simulated server: no clock")
	}
	if cfg.Free == (Pace{}) {
		cfg.Free = DefaultPace()
	}
	if cfg.Free.Tokens <= 0 || cfg.Free.TTFT < 0 || cfg.Free.TPOT < 0 {
		return nil, fmt.Errorf("make simulated server: pace %+v: want at least one token and no negative time", cfg.Free)
	}
	if cfg.Model == "" {
		cfg.Model = "simulated"
	}
	model, err := json.Marshal(cfg.Model)
	if err != nil {
		return nil, fmt.Errorf("make simulated server: %w", err)
	}
	s := &Server{cfg: cfg, model: string(model), planned: map[int]scenario.Request{}}
	if cfg.Plan != nil {
		for _, r := range cfg.Plan.Requests() {
			if r.Target == cfg.Target {
				s.order = append(s.order, r.Index)
				s.planned[r.Index] = r
			}
		}
	}
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, map[string]string{"version": "simulated"}) })
	s.mux.HandleFunc("GET /v1/models", s.serveModels)
	s.mux.HandleFunc("GET /metrics", s.serveMetrics)
	s.mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { s.serveCompletion(w, r, chat) })
	s.mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { s.serveCompletion(w, r, text) })
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(SimulatedHeader, "tpotscope")
	s.mux.ServeHTTP(w, r)
}

// Run serves on ln until ctx ends, cuts what is still open then, and returns nil once all of it has ended. It closes ln.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	var conns sync.WaitGroup
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew: // told by Serve itself, before it accepts another
				conns.Add(1)
			case http.StateClosed, http.StateHijacked:
				conns.Done()
			default:
			}
		},
		// Streams end with the server, not when their last token is due.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() }) // its fault is the listener's, which Serve reports
	defer stop()
	err := srv.Serve(ln)
	_ = srv.Close() // once more, where it was the listener that ended
	conns.Wait()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve simulated engine: %w", err)
	}
	return nil
}

// errClaimed is the answer to a request that names a scenario request that is not there to be played.
var errClaimed = errors.New("no such scenario request, or played before")

// claim returns the scenario request that r plays; none if it gets the fixed pace.
func (s *Server) claim(r *http.Request) (scenario.Request, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch name := r.Header.Get(RequestHeader); name {
	case "none":
		return scenario.Request{}, false, nil
	case "":
		for len(s.order) > 0 {
			i := s.order[0]
			s.order = s.order[1:]
			if req, ok := s.planned[i]; ok {
				delete(s.planned, i)
				return req, true, nil
			}
		}
		return scenario.Request{}, false, nil
	default:
		i, err := strconv.Atoi(name)
		req, ok := s.planned[i]
		if err != nil || !ok {
			return scenario.Request{}, false, errClaimed
		}
		delete(s.planned, i)
		return req, true, nil
	}
}

// elapsed returns the time since the plan began.
func (s *Server) elapsed() time.Duration { return s.cfg.Now().Sub(s.cfg.Epoch) }

func (s *Server) serveModels(w http.ResponseWriter, _ *http.Request) {
	type entry struct {
		ID      string  `json:"id"`
		Object  string  `json:"object"`
		Created int64   `json:"created"`
		OwnedBy string  `json:"owned_by"`
		Root    string  `json:"root"`
		Parent  *string `json:"parent"`
		MaxLen  int     `json:"max_model_len"`
	}
	writeJSON(w, map[string]any{"object": "list", "data": []entry{{
		ID: s.cfg.Model, Object: "model", Created: time.Now().Unix(), OwnedBy: "tpotscope simulation", Root: s.cfg.Model, MaxLen: maxContext,
	}}})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone, and there is nobody else to tell
}
