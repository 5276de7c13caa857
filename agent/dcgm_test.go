package agent_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/agent"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// An agent without a driver finds the GPUs of an exporter, and records what it tells.
func TestAnAgentReadsAnExporterInPlaceOfTheDriver(t *testing.T) {
	t.Parallel()
	began := time.Now()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := int(time.Since(began) / (500 * time.Millisecond))
		_, _ = fmt.Fprintf(w, "DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-b\",gpu=\"0\",modelName=\"NVIDIA A100-SXM4-80GB\"} 0.%d\n", 4000+n)
	}))
	defer srv.Close()
	cfg := quiet(t)
	cfg.DCGM.URL, cfg.DCGM.Interval = srv.URL, 100*time.Millisecond
	ag := start(t, cfg, agent.Deps{})
	until(t, 20*time.Second, "windows of the exporter", func() bool {
		page := ag.get(t, "/healthz")
		return strings.Contains(page, `"uuid": "GPU-b"`) && strings.Contains(page, `"state": "ok"`) && strings.Contains(page, `"collections": `) &&
			ag.log.count("event=counter_source") == 1
	})
	if page := ag.get(t, "/healthz"); strings.Contains(page, "no counters") {
		t.Errorf("health %s", page)
	}
	ag.stop(t)
	r, err := record.OpenReader(cfg.RecordDir())
	must(t, err)
	if g := r.Meta().GPUs; len(g) != 1 || g[0].UUID != "GPU-b" {
		t.Errorf("recorded GPUs %+v", g)
	}
	cfg.DCGM.URL = "host:9400"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "dcgm.url") {
		t.Errorf("Validate() = %v", err)
	}
}
