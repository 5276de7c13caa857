package stats

import (
	"fmt"
	"math"
	"slices"

	"github.com/DataDog/sketches-go/ddsketch"
)

// Accuracy is the relative error of percentiles that come from a sketch.
const Accuracy = 0.01

// maxBins bounds a sketch's memory. At an accuracy of 1 %, 2048 bins reach from 80 microseconds to a year (Masson,
// Rim and Lee 2019, DDSketch); smaller values collapse into the lowest bin.
const maxBins = 2048

// DefaultExact is how many values a Distribution keeps as they are.
const DefaultExact = 100_000

// Distribution holds the values of one quantity: all of them up to a limit, a sketch of relative error [Accuracy]
// beyond. Values must not be negative; what is negative or no number is ignored. The zero Distribution keeps
// [DefaultExact] values. It merges without loss in either form.
type Distribution struct {
	limit  int
	values []float64
	sorted bool
	sketch *ddsketch.DDSketch
	sum    float64
}

// NewDistribution returns a distribution that keeps up to exact values as they are.
func NewDistribution(exact int) *Distribution { return &Distribution{limit: max(exact, 1)} }

// Add takes one value and reports whether it is one.
func (d *Distribution) Add(x float64) bool {
	if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
		return false
	}
	if d.sketch != nil {
		return d.put(x)
	}
	d.sum += x
	d.values, d.sorted = append(d.values, x), false
	if len(d.values) > d.exact() {
		d.collapse()
	}
	return true
}

// Merge adds all that o holds; o stays as it was.
func (d *Distribution) Merge(o *Distribution) error {
	if o.sketch == nil {
		for _, x := range o.values {
			d.Add(x)
		}
		return nil
	}
	if d.sketch == nil {
		d.collapse()
	}
	if err := d.sketch.MergeWith(o.sketch); err != nil {
		return fmt.Errorf("merge sketches: %w", err)
	}
	d.sum += o.sum
	return nil
}

// Len returns how many values were added.
func (d *Distribution) Len() int {
	if d.sketch != nil {
		return int(d.sketch.GetCount())
	}
	return len(d.values)
}

// Exact reports whether percentiles are of the values themselves, and not of a sketch.
func (d *Distribution) Exact() bool { return d.sketch == nil }

// Mean returns the mean, exact in both forms, and false for no values.
func (d *Distribution) Mean() (float64, bool) {
	n := d.Len()
	if n == 0 {
		return 0, false
	}
	return d.sum / float64(n), true
}

// Quantile returns the p-quantile: [Linear] while the values are kept, within [Accuracy] of the value at the lower of
// the two neighbouring ranks from a sketch. It is absent for no values.
func (d *Distribution) Quantile(p float64) (float64, bool) {
	if d.sketch != nil {
		v, err := d.sketch.GetValueAtQuantile(p)
		return v, err == nil
	}
	return Quantile(d.Sorted(), p, Linear)
}

// Sorted returns the values in ascending order, nil once they are a sketch. The slice is the distribution's own, and
// holds until the next Add or Merge.
func (d *Distribution) Sorted() []float64 {
	if !d.sorted {
		slices.Sort(d.values)
		d.sorted = true
	}
	return d.values
}

func (d *Distribution) exact() int {
	if d.limit == 0 {
		return DefaultExact
	}
	return d.limit
}

// collapse turns the kept values into a sketch.
func (d *Distribution) collapse() {
	// The error is of a bad accuracy alone, and this one is a constant.
	d.sketch, _ = ddsketch.LogCollapsingLowestDenseDDSketch(Accuracy, maxBins)
	d.sum = 0
	for _, x := range d.values {
		d.put(x)
	}
	d.values, d.sorted = nil, false
}

// put adds x to the sketch, which refuses values beyond the range of its bins.
func (d *Distribution) put(x float64) bool {
	if d.sketch.Add(x) != nil {
		return false
	}
	d.sum += x
	return true
}
