// Package clock ties the clock of a peer to the host's timeline, from exchanges of four stamps over whatever connects
// the two. It states two errors and keeps them apart: a bound that holds whatever the network does, and a spread that
// says how well the estimate usually does. It reads no clock itself.
//
// A stamp that left the peer at T1 and came here at T2 says that the offset is at most T2-T1; one that left here at T3
// and came there at T4 says that it is at least T3-T4. Between exchanges the offset moves by no more than the clocks
// drift. The intersection of all such ranges is the bound (Cristian 1989, and the hulls of Moon, Skelly and Towsley
// 1999); half the shortest round trip is its simplest case.
package clock

import (
	"errors"
	"fmt"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Exchange is one round trip. T1 and T4 are on the peer's clock, T2 and T3 on the host's timeline.
type Exchange struct {
	T1 timeline.Instant // the peer sent
	T2 timeline.Instant // the host received
	T3 timeline.Instant // the host answered
	T4 timeline.Instant // the peer received the answer
}

// RTT returns the time that the two legs took together.
func (x Exchange) RTT() time.Duration { return x.T4.Sub(x.T1) - x.T3.Sub(x.T2) }

// Offset returns what to add to the peer's clock to get the host's, if both legs took as long as each other.
func (x Exchange) Offset() time.Duration { return (x.T2.Sub(x.T1) + x.T3.Sub(x.T4)) / 2 }

// ErrStamps is the fault of an exchange whose stamps cannot be: an answer before its question.
var ErrStamps = errors.New("stamps out of order")

// Config sets an Estimator.
type Config struct {
	MaxDriftPPM float64       `yaml:"max_drift_ppm"` // no clock drifts faster against another
	Keep        int           `yaml:"keep"`          // exchanges
	MaxAge      time.Duration `yaml:"max_age"`       // of an exchange against the newest
}

// DefaultConfig holds NTP's bound on drift (15 ppm, RFC 5905) with room for two clocks that both drift, and as many
// exchanges as come in five minutes at one every five seconds.
func DefaultConfig() Config { return Config{MaxDriftPPM: 30, Keep: 64, MaxAge: 10 * time.Minute} }

// Validate returns all faults of c.
func (c Config) Validate() error {
	var errs []error
	if c.MaxDriftPPM <= 0 || c.MaxDriftPPM > 1000 {
		errs = append(errs, fmt.Errorf("check max_drift_ppm: %v is not in (0, 1000]", c.MaxDriftPPM))
	}
	if c.Keep < 1 {
		errs = append(errs, fmt.Errorf("check keep: %d is less than one", c.Keep))
	}
	if c.MaxAge <= 0 {
		errs = append(errs, fmt.Errorf("check max_age: %v is not positive", c.MaxAge))
	}
	return errors.Join(errs...)
}

// Estimator gathers the exchanges with one peer. An epoch is a time in which neither clock was set nor stopped;
// exchanges of different epochs are never joined. It is not safe for concurrent use.
type Estimator struct {
	cfg    Config
	epoch  int
	refuse int
	xs     []Exchange // of this epoch, in the order they came
}

// NewEstimator returns an estimator without exchanges. What c leaves at zero is as in [DefaultConfig].
func NewEstimator(c Config) *Estimator {
	d := DefaultConfig()
	if c.MaxDriftPPM <= 0 {
		c.MaxDriftPPM = d.MaxDriftPPM
	}
	if c.Keep < 1 {
		c.Keep = d.Keep
	}
	if c.MaxAge <= 0 {
		c.MaxAge = d.MaxAge
	}
	return &Estimator{cfg: c}
}

// Add takes one exchange. It reports whether the exchange contradicts the earlier ones, so that one of the clocks must
// have been set or stopped between; then a new epoch begins with x.
func (e *Estimator) Add(x Exchange) (bool, error) {
	if x.T1.IsZero() || x.T2.IsZero() || x.T4 < x.T1 || x.T3 < x.T2 || x.RTT() < 0 {
		e.refuse++
		return false, fmt.Errorf("add exchange: %w", ErrStamps)
	}
	stepped := false
	if len(e.xs) > 0 {
		b := band{e.xs, e.drift()}
		upper, lower := float64(x.T2.Sub(x.T1)), float64(x.T3.Sub(x.T4))
		lo, _ := b.at(x.T1)
		_, hi := b.at(x.T4)
		if stepped = upper < lo || lower > hi; stepped {
			e.CloseEpoch()
		}
	}
	e.xs = append(e.xs, x)
	old := 0
	for old < len(e.xs)-1 && (len(e.xs)-old > e.cfg.Keep || x.T4.Sub(e.xs[old].T4) > e.cfg.MaxAge) {
		old++
	}
	// A fresh slice, so that estimates handed out before keep theirs.
	if old > 0 {
		e.xs = append(make([]Exchange, 0, e.cfg.Keep+1), e.xs[old:]...)
	}
	return stepped, nil
}

// CloseEpoch forgets all exchanges: the caller knows that a clock was set, or that a host was suspended or paused.
func (e *Estimator) CloseEpoch() {
	if len(e.xs) > 0 {
		e.epoch++
		e.xs = nil
	}
}

// Epoch returns the number of the current epoch, from zero.
func (e *Estimator) Epoch() int { return e.epoch }

// Refused returns how many exchanges were refused for their stamps.
func (e *Estimator) Refused() int { return e.refuse }

// drift is the bound on drift as a ratio.
func (e *Estimator) drift() float64 { return e.cfg.MaxDriftPPM * 1e-6 }
