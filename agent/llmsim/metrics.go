package llmsim

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tpotscope/tpotscope/correlate/scenario"
)

// live counts the requests outside the plan, which the plan's engine state does not hold.
type live struct {
	mu sync.Mutex
	st scenario.EngineState
}

func (l *live) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.st.Running++
}

func (l *live) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.st.Running--
	l.st.Finished++
}

// event counts the i-th moment of a reply, which came gap after the one before.
func (l *live) event(rep *reply, i int, e event, gap time.Duration, p Pace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.st.OutputTokens += e.tokens
	l.st.Steps++
	if i == 0 {
		l.st.PromptTokens += rep.prompt
		l.st.TTFTSum += p.TTFT.Seconds()
		l.st.TTFTCount++
		return
	}
	l.st.ITLSum += gap.Seconds()
	l.st.ITLCount++
}

// whole counts a reply in one piece.
func (l *live) whole(rep *reply, p Pace) {
	for i, e := range rep.events {
		l.event(rep, i, e, p.TPOT, p)
	}
}

func (s *Server) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	elapsed := s.elapsed()
	var st scenario.EngineState
	if s.cfg.Plan != nil {
		st = s.cfg.Plan.Engine(s.cfg.Target, max(0, elapsed))
	}
	s.live.mu.Lock()
	free := s.live.st
	s.live.mu.Unlock()
	st.Running += free.Running
	st.PromptTokens += free.PromptTokens
	st.OutputTokens += free.OutputTokens
	st.Steps += free.Steps
	st.Finished += free.Finished
	st.ITLSum += free.ITLSum
	st.ITLCount += free.ITLCount
	st.TTFTSum += free.TTFTSum
	st.TTFTCount += free.TTFTCount

	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	var p page
	p.labels = `{engine="0",model_name=` + promString(s.cfg.Model) + `}`
	p.sb.WriteString("# HELP process_start_time_seconds Start of the simulation, or of its engine's newest life.\n# TYPE process_start_time_seconds gauge\n")
	fmt.Fprintf(&p.sb, "process_start_time_seconds %.3f\n", float64(time.Now().Add(st.Started-elapsed).UnixMilli())/1e3)
	p.one("num_requests_running", "gauge", float64(st.Running))
	p.one("num_requests_waiting", "gauge", float64(st.Waiting))
	p.one("kv_cache_usage_perc", "gauge", st.KVUsage)
	p.one("prefix_cache_queries_total", "counter", float64(st.PrefixQueries+free.PromptTokens))
	p.one("prefix_cache_hits_total", "counter", float64(st.PrefixHits))
	p.one("num_preemptions_total", "counter", float64(st.Preemptions))
	p.one("prompt_tokens_total", "counter", float64(st.PromptTokens))
	p.one("generation_tokens_total", "counter", float64(st.OutputTokens))
	p.one("request_success_total", "counter", float64(st.Finished))
	p.histogram("iteration_tokens_total", float64(st.PromptTokens+st.OutputTokens), st.Steps)
	p.histogram("time_to_first_token_seconds", st.TTFTSum, st.TTFTCount)
	p.histogram("inter_token_latency_seconds", st.ITLSum, st.ITLCount)
	if st.KVBlocks > 0 {
		fmt.Fprintf(&p.sb, "# HELP vllm:cache_config_info Simulated.\n# TYPE vllm:cache_config_info gauge\n"+
			"vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"auto\",engine=\"0\",num_gpu_blocks=\"%d\"} 1\n", st.BlockSize, st.KVBlocks)
	}
	_, _ = w.Write([]byte(p.sb.String())) // the client may be gone, and there is nobody else to tell
}

// page is a Prometheus text page in the making.
type page struct {
	sb     strings.Builder
	labels string
}

func (p *page) head(name, kind string) {
	fmt.Fprintf(&p.sb, "# HELP vllm:%s Simulated.\n# TYPE vllm:%s %s\n", name, name, kind)
}

func (p *page) one(name, kind string, v float64) {
	p.head(name, kind)
	fmt.Fprintf(&p.sb, "vllm:%s%s %g\n", name, p.labels, v)
}

func (p *page) histogram(name string, sum float64, count int) {
	p.head(name, "histogram")
	inf := strings.TrimSuffix(p.labels, "}") + `,le="+Inf"}`
	fmt.Fprintf(&p.sb, "vllm:%s_bucket%s %d\nvllm:%s_count%s %d\nvllm:%s_sum%s %g\n", name, inf, count, name, p.labels, count, name, p.labels, sum)
}

// promString quotes a label value.
func promString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s) + `"`
}
