package scenario

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// fields are the words of one line after its keyword: words of their own, pairs, and at most one span.
type fields struct {
	words []string
	pairs []Arg
	span  *Span
}

// split sorts the words of a line. A word with "=" is a pair, any other with ".." is a span.
func split(words []string, length time.Duration) (fields, error) {
	var f fields
	for _, w := range words {
		key, value, pair := strings.Cut(w, "=")
		switch {
		case pair && key == "":
			return f, fmt.Errorf("%q has no key", w)
		case pair:
			if f.has(key) {
				return f, fmt.Errorf("key %q is given twice", key)
			}
			f.pairs = append(f.pairs, Arg{key, value})
		case strings.Contains(w, ".."):
			if f.span != nil {
				return f, fmt.Errorf("a second span %q", w)
			}
			s, err := parseSpan(w, length)
			if err != nil {
				return f, err
			}
			f.span = &s
		default:
			f.words = append(f.words, w)
		}
	}
	return f, nil
}

func (f *fields) has(key string) bool {
	for _, p := range f.pairs {
		if p.Key == key {
			return true
		}
	}
	return false
}

// read hands each pair to the reader of its key, and refuses a key that has none.
func (f *fields) read(keyword string, readers map[string]func(string) error, known []string) error {
	for _, p := range f.pairs {
		read, ok := readers[p.Key]
		if !ok {
			return unknownWord("key of "+keyword, p.Key, known)
		}
		if err := read(p.Value); err != nil {
			return fmt.Errorf("%s=%s: %w", p.Key, p.Value, err)
		}
	}
	return nil
}

// over returns the line's span, which by default is all of the scenario.
func (f *fields) over(length time.Duration) Span {
	if f.span != nil {
		return *f.span
	}
	return Span{0, length}
}

func unknownWord(kind, word string, known []string) error {
	return &hardware.UnknownError{Kind: kind, Name: word, Near: hardware.Nearest(word, known, 3)}
}

// parseSpan reads "10s..20s"; either end may be missing.
func parseSpan(w string, length time.Duration) (Span, error) {
	from, to, _ := strings.Cut(w, "..")
	s := Span{0, length}
	var err error
	if from != "" {
		if s.From, err = parseDuration(from); err != nil {
			return s, fmt.Errorf("span %s: %w", w, err)
		}
	}
	if to != "" {
		if s.To, err = parseDuration(to); err != nil {
			return s, fmt.Errorf("span %s: %w", w, err)
		}
	}
	if s.To <= s.From {
		return s, fmt.Errorf("span %s: it ends before it starts, or after the scenario", w)
	}
	return s, nil
}

func parseDuration(w string) (time.Duration, error) {
	d, err := time.ParseDuration(w)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 250ms or 12s", w)
	}
	if d < 0 || d > maxLength {
		return 0, fmt.Errorf("%s is out of range (0s to %s)", w, maxLength)
	}
	return d, nil
}

// parseNumber reads a number with the given unit, which may be left out. "%" makes a hundredth.
func parseNumber(w, unit string) (float64, error) {
	text, percent := strings.CutSuffix(strings.TrimSuffix(w, unit), "%")
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, fmt.Errorf("%q is not a number", w)
	}
	if percent {
		n /= 100
	}
	return n, nil
}

var errRange = errors.New("out of range")

// The setters below make readers of pairs.

func setDuration(to *time.Duration) func(string) error {
	return func(v string) error {
		d, err := parseDuration(v)
		*to = d
		return err
	}
}

func setInt(to *int, low, high int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", v)
		}
		if n < low || n > high {
			return fmt.Errorf("%w (%d to %d)", errRange, low, high)
		}
		*to = n
		return nil
	}
}

func setFloat(to *float64, low, high float64) func(string) error {
	return func(v string) error {
		n, err := parseNumber(v, "")
		if err != nil {
			return err
		}
		if n < low || n > high {
			return fmt.Errorf("%w (%g to %g)", errRange, low, high)
		}
		*to = n
		return nil
	}
}

func setRange(to *Range) func(string) error {
	return func(v string) error {
		low, top, ok := strings.Cut(v, "..")
		if !ok {
			top = low
		}
		if err := setInt(&to.Low, 1, maxTokens)(low); err != nil {
			return err
		}
		return setInt(&to.High, to.Low, maxTokens)(top)
	}
}

func setChoice(to *bool, yes, no string) func(string) error {
	return func(v string) error {
		if v != yes && v != no {
			return unknownWord("value", v, []string{yes, no})
		}
		*to = v == yes
		return nil
	}
}

func setDType(to *hardware.DType) func(string) error {
	return func(v string) error {
		d, err := hardware.LookupDType(v)
		*to = d
		return err
	}
}

func setModel(to *hardware.Model) func(string) error {
	return func(v string) error {
		m, err := hardware.LookupModel(v)
		*to = m
		return err
	}
}

// setWord reads one of the known words.
func setWord[T ~string](to *T, known []T) func(string) error {
	return func(v string) error {
		if !slices.Contains(known, T(v)) {
			var names []string
			for _, k := range known {
				names = append(names, string(k))
			}
			return unknownWord("value", v, names)
		}
		*to = T(v)
		return nil
	}
}

// What a phase can say that it shows. The gates are the reasons for which nothing can be said of it.
var (
	overlays = []timeline.Overlay{
		timeline.Throttled, timeline.PrefillInterference, timeline.Preempted, timeline.NoisyNeighbour, timeline.CommOrStraggler,
	}
	grades = []timeline.Grade{
		timeline.Isolated, timeline.Shared, timeline.Contaminated, timeline.Inherited, timeline.Insufficient,
	}
	gates = []Gate{GateWindows, GateCoverage, GateClock, GateForeign, GateMIG, GateLegacy, GateUntrusted, GatePermission, GateIdle}
)

// setPart reads a part such as 1/7.
func setPart(to *float64) func(string) error {
	return func(v string) error {
		over, under, ok := strings.Cut(v, "/")
		var n, of int
		if !ok {
			return fmt.Errorf("%q is not a part such as 1/7", v)
		}
		if err := setInt(&n, 1, 8)(over); err != nil {
			return err
		}
		if err := setInt(&of, n, 8)(under); err != nil {
			return err
		}
		*to = float64(n) / float64(of)
		return nil
	}
}

// faultKinds are the faults of the machine, with the reader of their value if they take one.
var faultKinds = []struct {
	kind  FaultKind
	value func(*Fault, string) error
}{
	{PowerCap, func(f *Fault, w string) error { return quantity(&f.Value, w, "W", 1, 1, 5000) }},
	{ClockLock, func(f *Fault, w string) error { return quantity(&f.Value, w, "MHz", 1e6, 100, 5000) }},
	{Thermal, func(f *Fault, w string) error { return quantity(&f.Value, w, "MHz", 1e6, 100, 5000) }},
	{HostStall, func(f *Fault, w string) error { return duration(&f.Value, w) }},
	{BandwidthLoss, func(f *Fault, w string) error { return quantity(&f.Value, w, "", 1, 0, 0.95) }},
	{Eager, nil},
	{SlowLaunch, func(f *Fault, w string) error { return duration(&f.Value, w) }},
	{SlowLink, func(f *Fault, w string) error { return duration(&f.Value, w) }},
	{Neighbour, func(f *Fault, w string) error { return quantity(&f.Value, w, "", 1, 0, 0.9) }},
	{Acceptance, func(f *Fault, w string) error { return quantity(&f.Value, w, "", 1, 0, 1) }},
	{PrefixMiss, nil},
	{Straggler, func(f *Fault, w string) error { return quantity(&f.Value, w, "", 1, 0, 10) }},
	{Cooling, func(f *Fault, w string) error { return quantity(&f.Value, w, "", 1, 0.1, 10) }},
	{FrontStall, func(f *Fault, w string) error { return duration(&f.Value, w) }},
	{Restart, func(f *Fault, w string) error { return duration(&f.Value, w) }},
	{LongOutput, func(f *Fault, w string) error { return quantity(&f.Value, w, "", 1, 0.01, 100) }},
	{LongPrompt, func(f *Fault, w string) error { return quantity(&f.Value, w, "", 1, 0.01, 100) }},
}

func quantity(to *float64, w, unit string, scale, low, high float64) error {
	n, err := parseNumber(w, unit)
	if err != nil {
		return err
	}
	if n < low || n > high {
		return fmt.Errorf("%s is %w (%g to %g)", w, errRange, low, high)
	}
	*to = n * scale
	return nil
}

func duration(to *float64, w string) error {
	d, err := parseDuration(w)
	*to = d.Seconds()
	return err
}

func (p *parser) fault(words []string) error {
	f := Fault{GPU: -1, Target: -1}
	fs, err := p.readPairs("fault", words, map[string]func(string) error{
		"gpu": setInt(&f.GPU, 0, len(p.s.GPUs)-1), "target": p.setTarget(&f.Target), "every": setDuration(&f.Every),
	})
	if err != nil {
		return err
	}
	f.Over = fs.over(p.s.Length)
	if len(fs.words) == 0 {
		return fmt.Errorf("want one of %s", strings.Join(faultNames(), ", "))
	}
	i := slices.Index(faultNames(), fs.words[0])
	if i < 0 {
		return unknownWord("fault", fs.words[0], faultNames())
	}
	kind := faultKinds[i]
	f.Kind = kind.kind
	rest := fs.words[1:]
	switch {
	case kind.value == nil && len(rest) > 0:
		return fmt.Errorf("%s takes no value", f.Kind)
	case kind.value != nil && len(rest) != 1:
		return fmt.Errorf("%s wants one value", f.Kind)
	case f.Every > 0 && f.Kind != HostStall && f.Kind != FrontStall:
		return fmt.Errorf("%s takes no every=", f.Kind)
	case kind.value != nil:
		if err := kind.value(&f, rest[0]); err != nil {
			return fmt.Errorf("%s: %w", f.Kind, err)
		}
	}
	p.s.Faults = append(p.s.Faults, f)
	return nil
}

func faultNames() []string {
	var names []string
	for _, k := range FaultKinds() {
		names = append(names, string(k))
	}
	return names
}

// counterFaults are the faults of the instrument.
var counterFaults = []string{
	"gap", "nan", "frozen", "lag", "jitter", "hang", "lost", "no_permission", "unsupported", "untrusted", "denominator", "noise", "spike", "zero",
}

func (p *parser) counter(words []string) error {
	c := CounterFault{GPU: -1}
	f, err := split(words, p.s.Length)
	if err != nil {
		return err
	}
	c.Over = f.over(p.s.Length)
	for _, a := range f.pairs {
		if a.Key == "gpu" {
			if err := setInt(&c.GPU, 0, len(p.s.GPUs)-1)(a.Value); err != nil {
				return fmt.Errorf("gpu=%s: %w", a.Value, err)
			}
			continue
		}
		if c.Name == "" && len(f.words) == 0 {
			c.Name = a.Key
		}
		c.Args = append(c.Args, a)
	}
	if len(f.words) > 0 {
		if c.Name, err = f.one("name of a counter fault"); err != nil {
			return err
		}
	}
	if !slices.Contains(counterFaults, c.Name) {
		return unknownWord("counter fault", c.Name, counterFaults)
	}
	p.s.Counters = append(p.s.Counters, c)
	return nil
}

func (p *parser) phase(words []string) error {
	var ph Phase
	f, err := p.readPairs("phase", words, map[string]func(string) error{
		"label":   setWord(&ph.Label, timeline.Labels()),
		"overlay": setWord(&ph.Overlay, overlays),
		"grade":   setWord(&ph.Grade, grades),
		"gate":    setWord(&ph.Gate, gates),
	})
	if err != nil {
		return err
	}
	ph.Span = f.over(p.s.Length)
	if ph.Name, err = f.one("name"); err != nil {
		return err
	}
	if slices.ContainsFunc(p.s.Phases, func(o Phase) bool { return o.Name == ph.Name }) {
		return fmt.Errorf("a second phase %q", ph.Name)
	}
	if ph.Span.To > p.s.Length {
		return fmt.Errorf("phase %q ends after the scenario (%s)", ph.Name, p.s.Length.Round(time.Millisecond))
	}
	p.s.Phases = append(p.s.Phases, ph)
	return nil
}
