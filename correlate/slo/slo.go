// Package slo judges latencies of requests against objectives: whether a statistic of one latency lies below a limit, and
// how many requests kept several limits at once. It says met or missed only where the sample decides that, and otherwise
// why it does not. It knows no GPU.
package slo

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Latency names what a limit is on.
type Latency string

// The latencies that can have a limit.
const (
	TTFT Latency = "ttft"
	TPOT Latency = "tpot"
	ITL  Latency = "itl"
	E2E  Latency = "e2e"
)

// Latencies lists all of them.
func Latencies() []Latency { return []Latency{TTFT, TPOT, ITL, E2E} }

// Kind says what of a latency an objective is about.
type Kind uint8

// The kinds of statistic.
const (
	Percentile Kind = iota // at least that part of the values lies below the limit
	Mean
	Max
)

// Objective is one statistic of one latency and the limit that it must lie below.
type Objective struct {
	Latency Latency
	Kind    Kind
	Part    float64 // of the values that a percentile has below it, in (0, 1)
	Limit   time.Duration
}

// Forms says how an objective is written, for help and for errors.
const Forms = "LATENCY.STATISTIC<LIMIT, with a LATENCY of ttft, tpot, itl or e2e, a STATISTIC of p50, p90, p99 or any other pN, mean or max, " +
	"and a LIMIT with its unit, as in tpot.p90<50ms"

// BoundForms says how the limits of goodput are written.
const BoundForms = "LATENCY<LIMIT[,...], with a LATENCY of ttft, tpot or e2e, each once, and a LIMIT with its unit, as in ttft<2s,tpot<50ms"

// Parse reads an objective.
func Parse(text string) (Objective, error) {
	name, limit, err := split(text)
	if err != nil {
		return Objective{}, fmt.Errorf("%q: %w: want %s", text, err, Forms)
	}
	latency, statistic, ok := strings.Cut(name, ".")
	if !ok {
		return Objective{}, fmt.Errorf("%q names no statistic: want %s", text, Forms)
	}
	if !slices.Contains(Latencies(), Latency(latency)) {
		return Objective{}, fmt.Errorf("%q: there is no latency %q: want %s", text, latency, Forms)
	}
	kind, part, err := statisticOf(statistic)
	if err != nil {
		return Objective{}, fmt.Errorf("%q: %w: want %s", text, err, Forms)
	}
	return Objective{Latency: Latency(latency), Kind: kind, Part: part, Limit: limit}, nil
}

// statisticOf reads the name of a statistic.
func statisticOf(name string) (Kind, float64, error) {
	switch name {
	case "mean":
		return Mean, 0, nil
	case "max":
		return Max, 0, nil
	}
	number, ok := strings.CutPrefix(name, "p")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || strings.ContainsAny(number, "eExX_+-") {
		return 0, 0, fmt.Errorf("there is no statistic %q", name)
	}
	if !(percent > 0 && percent < 100) {
		return 0, 0, fmt.Errorf("a percentile lies between 0 and 100, and %s does not", name)
	}
	return Percentile, percent / 100, nil
}

// String writes the objective as Parse reads it.
func (o Objective) String() string {
	return string(o.Latency) + "." + o.Statistic() + "<" + o.Limit.String()
}

// Statistic writes the statistic as Parse reads it.
func (o Objective) Statistic() string {
	switch o.Kind {
	case Mean:
		return "mean"
	case Max:
		return "max"
	case Percentile:
	}
	return "p" + strconv.FormatFloat(100*o.Part, 'g', 10, 64)
}

// Bound is a limit that each request must keep by itself.
type Bound struct {
	Latency Latency
	Limit   time.Duration
}

// String writes the bound as ParseBounds reads it.
func (b Bound) String() string { return string(b.Latency) + "<" + b.Limit.String() }

// ParseBounds reads the limits that a request must keep to be good.
func ParseBounds(text string) ([]Bound, error) {
	var out []Bound
	for part := range strings.SplitSeq(text, ",") {
		name, limit, err := split(part)
		if err != nil {
			return nil, fmt.Errorf("%q: %w: want %s", part, err, BoundForms)
		}
		b := Bound{Latency(name), limit}
		switch {
		case b.Latency == ITL:
			return nil, fmt.Errorf("%q: a request has many gaps: bound its tpot: want %s", part, BoundForms)
		case strings.Contains(name, "."):
			return nil, fmt.Errorf("%q: goodput is of single requests, without a statistic (--slo takes those): want %s", part, BoundForms)
		case !slices.Contains(Latencies(), b.Latency):
			return nil, fmt.Errorf("%q: there is no latency %q: want %s", part, name, BoundForms)
		case slices.ContainsFunc(out, func(o Bound) bool { return o.Latency == b.Latency }):
			return nil, fmt.Errorf("%q: %s has a limit already: want %s", part, name, BoundForms)
		}
		out = append(out, b)
	}
	return out, nil
}

// split parts a name from its limit.
func split(text string) (string, time.Duration, error) {
	name, number, ok := strings.Cut(strings.TrimSpace(text), "<")
	number = strings.TrimSpace(number)
	switch {
	case !ok:
		return "", 0, errors.New("there is no < in it")
	case strings.HasPrefix(number, "="):
		return "", 0, errors.New("a limit is the first value that is too long: write < alone")
	}
	limit, err := time.ParseDuration(number)
	if err != nil {
		return "", 0, fmt.Errorf("%q is no limit", number)
	}
	if limit <= 0 {
		return "", 0, fmt.Errorf("a limit of %s is never kept", number)
	}
	return strings.ToLower(strings.TrimSpace(name)), limit, nil
}
