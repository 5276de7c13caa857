package remote

import (
	"errors"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// A GPU that was lost may come back by a reset, of which no open driver tells. It is looked for by starting the helper
// anew, which opens the driver again and costs the other GPUs about a second: soon at first, since a reset that somebody
// is at takes seconds, and seldom later, since a GPU that fell off the bus stays away until a reboot.
const (
	firstLook  = 10 * time.Second
	lastLook   = 5 * time.Minute
	foundAgain = time.Minute // without a lost GPU, after which a loss is the first again
)

// errLook says that a helper is ended to look for lost GPUs.
var errLook = errors.New("the driver is opened again to look for a lost gpu")

// looks says when to look for lost GPUs. It is used by one goroutine.
type looks struct {
	wait  time.Duration    // before the next look; zero: nothing was lost yet
	due   timeline.Instant // zero: nothing is lost
	most  int              // GPUs lost at once since then
	whole timeline.Instant // since when nothing was lost; zero: something is
}

// look reports, with as many GPUs lost as that at now, whether it is time to look for them.
func (l *looks) look(lost int, now timeline.Instant) bool {
	switch {
	case lost == 0:
		l.due = 0
		if l.whole.IsZero() {
			l.whole = now
		}
		if now.Sub(l.whole) >= foundAgain {
			l.wait, l.most = 0, 0
		}
		return false
	case lost > l.most: // another one
		l.wait, l.due = firstLook, now.Add(firstLook)
	case l.due.IsZero():
		l.due = now.Add(l.wait)
	}
	l.most, l.whole = max(l.most, lost), 0
	if now < l.due {
		return false
	}
	l.due, l.wait = 0, min(2*l.wait, lastLook)
	return true
}

// seldom has the next look wait for as long as any does: the driver did not take the last one well.
func (l *looks) seldom() { l.wait = lastLook }
