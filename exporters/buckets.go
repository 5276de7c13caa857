package exporters

import (
	"cmp"
	"math"
	"slices"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

const (
	startScale = 4   // buckets a factor of 2^(1/16) wide: 4.4 %
	maxBuckets = 320 // at startScale they span 20 powers of two, 100 us to 100 s; beyond that pairs of buckets merge

	// ZeroThreshold is the upper end of the zero bucket in seconds. A gap below it is no token's: the events shared a
	// read.
	ZeroThreshold = 1e-4
)

// Exemplar is one value of a histogram with the span it belongs to.
type Exemplar struct {
	Value           float64
	At              timeline.Instant
	TraceID, SpanID string // hex

	number uint64 // of its attachment
}

// Buckets counts values in exponential buckets. Bucket i holds the values in (2^(i/2^Scale), 2^((i+1)/2^Scale)], as
// OpenTelemetry numbers them; Prometheus calls the same bucket i+1. It keeps one exemplar a power of two, the newest.
type Buckets struct {
	Count  uint64
	Sum    float64
	Zero   uint64 // values of at most ZeroThreshold
	Scale  int
	Offset int      // index of Counts[0]
	Counts []uint64 // never begins or ends with an unused bucket

	exemplars map[int]Exemplar // by power of two
	attached  uint64
}

// NewBuckets returns buckets that hold nothing.
func NewBuckets() *Buckets { return &Buckets{Scale: startScale, exemplars: map[int]Exemplar{}} }

// Observe counts v. Negative values, infinities and values that are no number are left out.
func (b *Buckets) Observe(v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return
	}
	b.Count++
	b.Sum += v
	if v <= ZeroThreshold {
		b.Zero++
		return
	}
	i := bucketIndex(v, b.Scale)
	for !b.reach(i) {
		b.halve()
		i = bucketIndex(v, b.Scale)
	}
	b.Counts[i-b.Offset]++
}

// Attach keeps e, in place of an older exemplar of the same power of two.
func (b *Buckets) Attach(e Exemplar) {
	if e.Value > 0 {
		b.attached++
		e.number = b.attached
		b.exemplars[bucketIndex(e.Value, 0)] = e
	}
}

// Attached returns how many exemplars were attached so far.
func (b *Buckets) Attached() uint64 { return b.attached }

// Exemplars returns the exemplars that were attached after the first n, in the order of their time.
func (b *Buckets) Exemplars(n uint64) []Exemplar {
	var out []Exemplar
	for _, e := range b.exemplars {
		if e.number > n {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(x, y Exemplar) int {
		return cmp.Or(cmp.Compare(x.At, y.At), cmp.Compare(x.number, y.number))
	})
	return out
}

// AtMost returns how many values are at most 2^power. It is exact.
func (b *Buckets) AtMost(power int) uint64 {
	if math.Ldexp(1, power) < ZeroThreshold {
		return 0
	}
	n := b.Zero
	last := power<<b.Scale - 1 // the bucket whose upper bound is 2^power
	for i, c := range b.Counts {
		if b.Offset+i <= last {
			n += c
		}
	}
	return n
}

// bucketIndex returns the bucket of v at a scale of zero or more.
func bucketIndex(v float64, scale int) int {
	frac, exp := math.Frexp(v) // v = frac * 2^exp, frac in [0.5, 1)
	if frac == 0.5 {
		return (exp-1)<<scale - 1 // an upper bound belongs to the bucket below
	}
	n := 1 << scale
	within := int(math.Log2(2*frac) * float64(n))
	return (exp-1)<<scale + min(within, n-1)
}

// reach makes room for bucket i, unless that would take too many buckets.
func (b *Buckets) reach(i int) bool {
	if len(b.Counts) == 0 {
		b.Offset, b.Counts = i, append(b.Counts, 0)
		return true
	}
	low, high := min(b.Offset, i), max(b.Offset+len(b.Counts)-1, i)
	if high-low >= maxBuckets && b.Scale > 0 {
		return false
	}
	if low < b.Offset {
		b.Counts = slices.Insert(b.Counts, 0, make([]uint64, b.Offset-low)...)
		b.Offset = low
	}
	if more := high - (b.Offset + len(b.Counts) - 1); more > 0 {
		b.Counts = append(b.Counts, make([]uint64, more)...)
	}
	return true
}

// halve merges pairs of buckets: the scale falls by one.
func (b *Buckets) halve() {
	offset := b.Offset >> 1
	counts := make([]uint64, (b.Offset+len(b.Counts)-1)>>1-offset+1)
	for i, c := range b.Counts {
		counts[(b.Offset+i)>>1-offset] += c
	}
	b.Offset, b.Counts, b.Scale = offset, counts, b.Scale-1
}
