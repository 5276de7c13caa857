package llmsim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Fault is what goes wrong with a reply. The zero Fault is a reply as it should be.
type Fault struct {
	Status    int           // answer with this error status instead
	ErrorAt   int           // after this many tokens an error object comes in the stream, and then the terminal marker
	CutAt     int           // after this many tokens the connection breaks
	NoDone    bool          // the terminal marker is missing
	Merge     int           // so many tokens come in one chunk
	EarlyRole bool          // the role chunk comes at once, not with the first token
	Slow      time.Duration // each token comes so much later than planned
}

// ParseFault reads a comma-separated list of faults: "status=503", "error=5", "cut=5", "nodone", "merge=4",
// "earlyrole", "slow=20ms".
func ParseFault(list string) (Fault, error) {
	var f Fault
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch name {
		case "":
		case "nodone":
			f.NoDone = true
		case "earlyrole":
			f.EarlyRole = true
		case "status":
			f.Status, err = number(value, 400, 599)
		case "error":
			f.ErrorAt, err = number(value, 1, maxTokens)
		case "cut":
			f.CutAt, err = number(value, 1, maxTokens)
		case "merge":
			f.Merge, err = number(value, 2, maxTokens)
		case "slow":
			f.Slow, err = time.ParseDuration(value)
			if err == nil && (f.Slow < 0 || f.Slow > time.Minute) {
				err = errors.New("want 0 to 1m")
			}
		default:
			err = errors.New("no such fault")
		}
		if err != nil {
			return Fault{}, fmt.Errorf("read fault %q: %w", word, err)
		}
	}
	return f, nil
}

func number(s string, low, high int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("want a number from %d to %d", low, high)
	}
	return n, nil
}
