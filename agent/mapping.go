package agent

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/agent/host"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// found is what is known of which GPUs a target uses that names none.
type found struct {
	uuids []string
	how   string // they were found; where none were, why
}

// ways in which a target comes by its GPUs, in /healthz.
const (
	byConfiguration = "configuration"
	byBeingAlone    = "the one engine and the one GPU"
	notYet          = "no GPU is known"
)

// targetHealth is what is known of one target, in /healthz.
type targetHealth struct {
	timeline.Target

	Mapping string `json:"mapping"` // how its GPUs are known, or why they are not
}

// health returns what is known of each target on a node with so many GPUs.
func (t *targets) health(gpus int) []targetHealth {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]targetHealth, len(t.list))
	for i := range t.list {
		how := notYet
		switch f, ok := t.found[t.list[i].Name]; {
		case len(t.configured[i].GPUs) > 0:
			how = byConfiguration
		case ok:
			how = f.how
		case gpus == 1 && len(t.list) == 1:
			how = byBeingAlone
		}
		list[i] = targetHealth{t.list[i], how}
	}
	return list
}

// tie takes what was found of the GPUs of a target that names none, and reports whether they are others than before. It
// hands the targets to tell if they are.
func (t *targets) tie(name string, f found, tell func([]timeline.Target)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.found[name]
	t.found[name] = f
	if slices.Equal(before.uuids, f.uuids) {
		return false
	}
	t.spread(tell)
	return true
}

// lookForEngines is how often it is looked whether who computes on the GPUs has changed, which takes nothing.
const lookForEngines = time.Second

// watchMapping ties targets that name no GPUs to those on which their engines compute, until ctx ends. One GPU and one
// engine need no tie.
func (a *Agent) watchMapping(ctx context.Context) error {
	var names, urls []string
	for i := range a.cfg.Targets {
		if t := &a.cfg.Targets[i]; len(t.GPUs) == 0 {
			names, urls = append(names, t.Name), append(urls, t.EngineURL)
		}
	}
	if len(names) == 0 {
		return nil
	}
	mapper, said := host.NewMapper(urls), map[string]string{}
	tick := time.NewTicker(lookForEngines)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		gpus := a.store.GPUs()
		if len(gpus) == 0 || len(gpus) == 1 && len(a.cfg.Targets) == 1 {
			continue
		}
		for i, m := range mapper.Look(ctx, a.clock.Now(), len(gpus), a.store.inventories()) {
			a.tie(names[i], &m, gpus, said)
		}
	}
}

// tie takes what was found of one target, and says once what people have to know.
func (a *Agent) tie(name string, m *host.Mapping, gpus []timeline.GPU, said map[string]string) {
	f := found{how: m.How}
	for _, i := range m.GPUs {
		if i < len(gpus) {
			f.uuids = append(f.uuids, gpus[i].UUID)
		}
	}
	switch {
	case a.targets.tie(name, f, a.ways.setTargets):
		a.log.Info("target is tied to gpus", slog.String("target", name), slog.Any("gpus", f.uuids), slog.String("because", f.how))
		a.store.AddEvent(timeline.Event{
			At: a.clock.Now(), Kind: timeline.EventInventory, GPU: timeline.NoGPU, Target: name,
			Detail: "tied to " + strings.Join(f.uuids, ", ") + ": " + f.how,
		})
		said[name] = f.how
	case m.Lasts && said[name] != f.how:
		a.log.Warn("target is tied to no gpu", slog.String("target", name), slog.String("cause", f.how))
		said[name] = f.how
	}
}
