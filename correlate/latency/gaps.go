package latency

import (
	"slices"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	// minSlopePoints is the least number of events, the first left out, through which a line is drawn.
	minSlopePoints = 6
	// maxSlopePairs bounds the work of a long request; the median of as many slopes is sure to a tenth of their spread.
	maxSlopePairs = 128
)

// gap is the time from one event of a choice to its next.
type gap struct {
	from, to int // positions in the stream's events
	seconds  float64
}

// addGaps fills in all that needs the whole list of events.
func (rec *Record) addGaps(s stream) {
	gaps := s.gaps()
	if len(gaps) == 0 {
		return
	}
	rec.FirstGap = timeline.Known(gaps[0].seconds)
	rec.ICL = make([]float64, len(gaps))
	for i, g := range gaps {
		rec.ICL[i] = g.seconds
	}
	if s.perEvent && s.hidden == "" {
		rec.ITL = s.itl(gaps)
	}
	typical := typicalGap(rec.ICL[1:])
	if gaps[0].seconds < backlogShare*typical && s.counted && len(s.events) < s.n {
		rec.Flags |= timeline.FlagBacklog
	}
	rec.Stalls = s.stalls(gaps, typical)
	rec.Slope = s.slope(typical)
}

// gaps returns the gaps of each choice between its events, in the order in which they end.
func (s *stream) gaps() []gap {
	if len(s.events) < 2 {
		return nil
	}
	out := make([]gap, 0, len(s.events)-1)
	if s.choices == 1 {
		for i := 1; i < len(s.events); i++ {
			out = append(out, s.between(i-1, i))
		}
		return out
	}
	last := map[int32]int{}
	for i := range s.events {
		c := s.events[i].Choice
		if j, ok := last[c]; ok {
			out = append(out, s.between(j, i))
		}
		last[c] = i
	}
	return out
}

func (s *stream) between(i, j int) gap {
	return gap{i, j, s.events[j].At.Sub(s.events[i].At).Seconds()}
}

// itl spreads each gap over the tokens of the event that ends it.
func (s *stream) itl(gaps []gap) []float64 {
	out := make([]float64, 0, max(0, s.n-s.kFirst))
	for _, g := range gaps {
		k := s.tokens(g.to)
		for range k {
			out = append(out, g.seconds/float64(k))
		}
	}
	return out
}

// tokens returns the tokens of event i where they are told, and one where there must have been one.
func (s *stream) tokens(i int) int {
	if e := &s.events[i]; counts(e.Source) {
		return int(e.Tokens)
	}
	return 1
}

// typicalGap returns the lower median of the gaps that are not zero: events that share a read have no gap of their
// own, and of two gaps the lesser is the usual one.
func typicalGap(gaps []float64) float64 {
	pos := make([]float64, 0, len(gaps))
	for _, g := range gaps {
		if g > 0 {
			pos = append(pos, g)
		}
	}
	if len(pos) == 0 {
		return 0
	}
	slices.Sort(pos)
	return pos[(len(pos)-1)/2]
}

// stalls returns the gaps that stand out, but for the first one, which has a figure of its own.
func (s *stream) stalls(gaps []gap, typical float64) []Stall {
	if typical <= 0 {
		return nil
	}
	var out []Stall
	for _, g := range gaps[1:] {
		if g.seconds > stallFactor*typical && g.seconds > stallFloor {
			out = append(out, Stall{timeline.Span{Start: s.events[g.from].At, End: s.events[g.to].At}, g.seconds})
		}
	}
	return out
}

// slope returns the median slope, in seconds per token, between events a fixed number of events apart. The usual
// Theil-Sen estimate takes all pairs; most of those straddle a stall if there is one, so it takes the stall for pace.
// Here a stall touches an eighth of the pairs. The first gap and a backlog behind the first event are left out.
func (s *stream) slope(typical float64) timeline.Measure {
	if s.choices > 1 {
		return timeline.Absent(WhyManyChoices)
	}
	if !s.perEvent || s.hidden != "" {
		return timeline.Absent(WhyEventCounts)
	}
	from := 1
	for from+1 < len(s.events) && s.between(from, from+1).seconds < backlogShare*typical {
		from++
	}
	m := len(s.events) - from
	if m < minSlopePoints {
		return timeline.Absent(WhyFewEvents)
	}
	apart := min(max(m/8, 1), 32)
	total := make([]int, m)
	for i := 1; i < m; i++ {
		total[i] = total[i-1] + s.tokens(from+i)
	}
	stride := (m - apart + maxSlopePairs - 1) / maxSlopePairs
	slopes := make([]float64, 0, maxSlopePairs)
	for i := 0; i+apart < m; i += stride {
		slopes = append(slopes, s.between(from+i, from+i+apart).seconds/float64(total[i+apart]-total[i]))
	}
	slices.Sort(slopes)
	if v := (slopes[(len(slopes)-1)/2] + slopes[len(slopes)/2]) / 2; v > 0 {
		return timeline.Known(v)
	}
	return timeline.Absent(WhyOneStamp)
}
