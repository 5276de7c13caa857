package nvml

import (
	"errors"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// What callers branch on. A driver's binding wraps its own text around one of these.
var (
	ErrNotSupported    = errors.New("not supported")
	ErrNoPermission    = errors.New("no permission")
	ErrGPULost         = errors.New("gpu is lost")
	ErrTimeout         = errors.New("driver timed out")
	ErrNoLibrary       = errors.New("driver library not found")
	ErrNoDriver        = errors.New("driver is not loaded")
	ErrVersionMismatch = errors.New("driver and library versions differ")
	ErrDriver          = errors.New("driver error")
)

// StateOf returns the state of a counter whose call ended with err. An error that is none of the known ones leaves
// the counter stale: it may come back.
func StateOf(err error) timeline.State {
	switch {
	case err == nil:
		return timeline.StateOK
	case errors.Is(err, ErrNotSupported):
		return timeline.StateUnsupported
	case errors.Is(err, ErrNoPermission):
		return timeline.StateNoPermission
	case errors.Is(err, ErrGPULost):
		return timeline.StateLost
	case errors.Is(err, ErrTimeout):
		return timeline.StateTimeout
	}
	return timeline.StateStale
}
