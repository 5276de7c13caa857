package agent

import (
	"context"
	"errors"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/remote"
)

// lostPause is how long devices of this process that were lost are left alone before they are opened anew.
const lostPause = time.Second

// Lasting is a source of devices in this process that opens them anew when all were lost, as a helper is started again
// that ends then.
type Lasting struct{ *remote.Local }

// Run samples until ctx ends.
func (l Lasting) Run(ctx context.Context, sink timeline.GPUSink) error {
	for {
		err := l.Local.Run(ctx, sink)
		if !errors.Is(err, nvml.ErrGPULost) {
			return err
		}
		pause := time.NewTimer(lostPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}
