package agent

import (
	"strings"
	"sync"

	"github.com/tpotscope/tpotscope/agent/scrape"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// targets keeps what is known of each target: what the configuration says, and for what it leaves open, what the
// engine tells.
type targets struct {
	store *Store

	mu   sync.Mutex
	list []timeline.Target
}

func newTargets(list []timeline.Target, store *Store) *targets {
	return &targets{store: store, list: append([]timeline.Target(nil), list...)}
}

// identify fills what is open in a target with what its engine told.
func (t *targets) identify(name string, id scrape.Identity) []timeline.Target {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.list {
		if t.list[i].Name == name {
			fill(&t.list[i], id)
		}
	}
	told := append([]timeline.Target(nil), t.list...)
	t.store.SetTargets(told)
	return told
}

func fill(t *timeline.Target, id scrape.Identity) {
	if t.Model == "" {
		if t.Model = id.Root; t.Model == "" {
			t.Model = id.Model
		}
	}
	if t.DType == "" {
		if t.DType = id.Quant; t.DType == "" {
			t.DType = id.DType
		}
	}
	if t.KVDType == "" {
		t.KVDType = id.KVDType
	}
	if t.TP == 0 {
		t.TP = id.TP
	}
}

// ofUpstream returns the name of the target that an upstream's requests belong to: the one whose engine it is, else
// the only one, else none.
func (t *targets) ofUpstream(upstream string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.list {
		if strings.TrimRight(t.list[i].EngineURL, "/") == strings.TrimRight(upstream, "/") {
			return t.list[i].Name
		}
	}
	if len(t.list) == 1 {
		return t.list[0].Name
	}
	return ""
}

// all returns the targets as they are known.
func (t *targets) all() []timeline.Target {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]timeline.Target(nil), t.list...)
}

// only returns the name of the target if there is but one, for observers that do not say which.
func (t *targets) only() string { return t.ofUpstream("") }
