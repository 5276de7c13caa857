package compare

import (
	"testing"

	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// change is a change of so many seconds, known to as many either way.
func change(name string, by, half float64) Part {
	return Part{Name: name, Change: Value{
		Value: timeline.Known(by), CI95: summary.Maybe[timeline.Interval]{Value: timeline.Interval{Low: by - half, High: by + half}},
	}}
}

func TestAPartGrewOnlyIfSoManyTestsAllowIt(t *testing.T) {
	all := func(string) bool { return true }
	still := []Part{change("compute", 0, 1), change("launch", 0, 1), change("other", 0, 1), {Name: "communication", Change: absent("not read")}}
	for _, tt := range []struct {
		name  string
		host  Part
		most  float64
		told  func(string) bool
		wants string
	}{
		{"a change far beyond its interval", change("host", 3, 1), 0.5, all, "host"},
		{"one that a single test would take", change("host", 1.05, 1), 0.5, all, ""},
		{"the same with no other test beside it", change("host", 1.05, 1), 0.5, func(name string) bool { return name == "host" }, "host"},
		{"one that explains too little", change("host", 3, 1), 4, all, ""},
		{"one that shrank", change("host", -3, 1), 0, all, ""},
		{"one that is known exactly", change("host", 3, 0), 0.5, all, "host"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := grown(append([]Part{tt.host}, still...), tt.most, tt.told); got != tt.wants {
				t.Errorf("grew %q, want %q", got, tt.wants)
			}
		})
	}
}
