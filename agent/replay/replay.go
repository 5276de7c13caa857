// Package replay feeds a recording to the same engine that judges live data, and hands on what the engine says. It
// knows no clock: what it does depends on the recording alone, so that the same recording gives the same output.
package replay

import (
	"context"
	"errors"
	"fmt"

	"github.com/tpotscope/tpotscope/agent/calibration"
	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/exporters/record"
)

// Result says what a replay went through.
type Result struct {
	Rows   int64           // fed to the engine
	Late   int64           // of them, too far out of order to be put right
	Stats  correlate.Stats // of the engine; of the last one, if the recording spans boots
	Faults []error         // of files, each a [*record.FileError]; what they do not concern was replayed
}

// checkEvery is how many rows pass between two looks at the context.
const checkEvery = 4096

// Run replays what r holds and calls emit with each piece of output, in the order of time. The engine's targets are
// cfg's or, if it has none, the recording's. The output is emit's until it returns. Progress, which may be nil, is
// called with the fraction that is done, once a piece of output and at the end.
//
// A recording that spans boots of its host is replayed boot by boot, each with an engine of its own: their timelines
// do not compare. When ctx ends, Run returns its error, and what was emitted stays right. An error of emit ends the
// replay too. Faults of files do not: they are in the Result.
func Run(
	ctx context.Context, r *record.Reader, cfg correlate.Config, emit func(*correlate.Output) error, progress func(done float64),
) (Result, error) {
	if err := cfg.Validate(); err != nil {
		return Result{}, fmt.Errorf("replay %s: %w", r.Dir(), err)
	}
	if len(cfg.Targets) == 0 {
		cfg.Targets = r.Meta().Targets
	}
	if cfg.Eta == nil {
		cfg.Eta = calibration.OfRecording(r.Meta().Config, r.Meta().GPUs)
	}
	cfg.AllowForeign = cfg.AllowForeign || calibration.AllowsForeign(r.Meta().Config)
	p := &player{reader: r, cfg: cfg, emit: emit, progress: progress}
	p.before, _ = r.Progress()
	for _, boot := range r.Boots() {
		if err := p.play(ctx, boot); err != nil {
			return p.result, fmt.Errorf("replay %s: %w", r.Dir(), err)
		}
	}
	if progress != nil {
		progress(1)
	}
	return p.result, nil
}

// player replays one recording.
type player struct {
	reader   *record.Reader
	cfg      correlate.Config
	emit     func(*correlate.Output) error
	progress func(float64)
	before   int64 // bytes that the reader had gone through

	engine *correlate.Engine
	out    correlate.Output
	next   timeline.Instant // of the data, from which on another cell may be closed
	result Result
}

func (p *player) play(ctx context.Context, boot string) error {
	p.engine = correlate.New(p.cfg)
	p.engine.SetGPUs(p.reader.Meta().GPUs)
	p.next = 0
	for row, err := range p.reader.Merge(boot) {
		if err != nil {
			if _, ok := errors.AsType[*record.FileError](err); !ok {
				return err
			}
			p.result.Faults = append(p.result.Faults, err)
			continue
		}
		if p.result.Rows%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := p.step(row); err != nil {
			return err
		}
	}
	p.engine.GiveUp() // nothing more of what is open can come: its observer died, or the recording stopped
	p.engine.Flush(&p.out)
	p.result.Stats = p.engine.Stats()
	return p.flush()
}

// step closes the cells that nothing more can come for, as the agent does, and then feeds the row.
func (p *player) step(row *record.Row) error {
	p.result.Rows++
	if row.Late {
		p.result.Late++
	}
	if row.At >= p.next {
		p.engine.Advance(&p.out, row.At.Add(-p.cfg.Lateness))
		cell := timeline.Instant(p.cfg.Cell)
		p.next = row.At - row.At%cell + cell
		if err := p.flush(); err != nil {
			return err
		}
	}
	p.feed(row)
	return nil
}

func (p *player) feed(row *record.Row) {
	switch row.Kind {
	case record.Samples:
		p.engine.AddSample(row.Sample)
	case record.Engine:
		p.engine.AddEngine(row.Engine)
	case record.Host:
		p.engine.AddHost(row.Host)
	case record.Events:
		if row.Event.Kind == timeline.EventSegment {
			p.engine.GiveUp() // nothing more of what is open can come: its observer died, or the recording stopped
		}
		if c, ok := row.Event.Capability(); ok {
			p.engine.AddCapability(c)
			if c.Call == timeline.ForeignProcess {
				p.engine.SetForeign(c.GPU, c.State == timeline.StateUntrusted)
			}
		}
		p.engine.AddEvent(*row.Event)
	case record.Opens:
		p.engine.Open(row.Request)
	case record.Tokens:
		p.engine.Token(*row.Token)
	case record.Requests:
		p.engine.Close(row.Request)
	case record.Anchors, record.Cells: // of no concern to the engine
	}
}

// flush hands on what the engine said.
func (p *player) flush() error {
	if len(p.out.Cells) == 0 && len(p.out.Phases) == 0 {
		return nil
	}
	defer p.out.Reset()
	if err := p.emit(&p.out); err != nil {
		return fmt.Errorf("emit: %w", err)
	}
	if p.progress != nil {
		read, total := p.reader.Progress()
		p.progress(min(1, float64(read-p.before)/float64(max(1, total))))
	}
	return nil
}
