package scrape

import (
	"fmt"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// An exporter that makes names up must not add to what is remembered for ever.
func TestWhatIsRememberedOfGPUsGoesWithThem(t *testing.T) {
	cfg := DefaultDCGMConfig()
	cfg.URL = "http://127.0.0.1:9400"
	at := timeline.Instant(time.Hour)
	d, err := NewDCGM(cfg, func() timeline.Instant { return at }, DCGMSink{Reading: func(*DCGMReading) {}, Event: func(timeline.Event) {}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		at = at.Add(time.Second)
		rows, refused, err := TranslateDCGM(fmt.Appendf(nil, "DCGM_FI_PROF_DRAM_ACTIVE{UUID=\"GPU-%d\"} 0.%d\n", i, i+1))
		if err != nil {
			t.Fatal(err)
		}
		d.look(at, rows, refused)
	}
	if len(d.trust) > 1 || d.stats.Collections != 500 {
		t.Errorf("%d GPUs are remembered of %d pages that told of one each", len(d.trust), d.stats.Collections)
	}
}
