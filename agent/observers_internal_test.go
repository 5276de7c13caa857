package agent

import (
	"testing"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

func TestAnObserverThatNeverClosesIsBounded(t *testing.T) {
	s := newStore(false)
	o := s.Source("").(*source)
	for ref := range uint64(3 * maxNumbers) {
		s.numbers.get(o, ref)
	}
	if n := s.numbers.held; n > maxNumbers || n < maxNumbers/2 || n != len(s.numbers.of[o]) {
		t.Errorf("%d numbers are kept, want about %d", n, maxNumbers)
	}
	newest := s.numbers.last
	if got := s.numbers.get(o, 3*maxNumbers-1); got != newest {
		t.Errorf("the newest request has number %d, want %d", got, newest)
	}
}

func TestManyObserversThatNeverCloseAreBoundedTogetherAndTakeNothingFromOthers(t *testing.T) {
	s := newStore(false)
	good := s.Source("").(*source)
	own := s.numbers.get(good, 1)
	for range 40 {
		events := make([]timeline.TokenEvent, maxNumbers/4)
		for i := range events {
			events[i].Ref = uint64(i + 1)
		}
		s.Source("").(timeline.TokensSink).AddTokens(events)
	}
	held := 0
	for _, refs := range s.numbers.of {
		held += len(refs)
	}
	if held > maxNumbers || held != s.numbers.held {
		t.Errorf("%d numbers are kept, and %d are thought to be; want at most %d", held, s.numbers.held, maxNumbers)
	}
	if got := s.numbers.get(good, 1); got != own {
		t.Errorf("a request that another observer has open has number %d now, want %d", got, own)
	}
}

func TestAnObserverThatIsGoneLeavesNothing(t *testing.T) {
	s := newStore(false)
	o := s.Source("").(*source)
	o.OpenRequest(&timeline.Request{Ref: 1, Sent: 1})
	o.AddToken(timeline.TokenEvent{Ref: 2, At: 2})
	o.CloseRequest(&timeline.Request{Ref: 1, Sent: 1, Done: 2})
	o.CloseRequest(&timeline.Request{Ref: 3, Sent: 1, Done: 2})
	if s.numbers.held != 1 || len(s.numbers.of) != 1 {
		t.Errorf("%d numbers of %d observers are kept, want one", s.numbers.held, len(s.numbers.of))
	}
	o.Forget()
	if s.numbers.held != 0 || len(s.numbers.of) != 0 {
		t.Errorf("%d numbers of %d observers are kept of one that is gone", s.numbers.held, len(s.numbers.of))
	}
}
