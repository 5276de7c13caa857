package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// unit is how the seconds of a row are written.
type unit struct {
	name     string
	per      float64 // of the unit in a second
	decimals int
}

// unitOf returns the unit for a row of values between the given ones, in seconds: milliseconds below a second, and as
// many decimals as the least of them needs for three digits.
func unitOf(low, high float64) unit {
	u := unit{name: "ms", per: 1e3}
	if math.Abs(low) >= 0.9995 {
		u = unit{name: "s", per: 1}
	}
	switch x := math.Abs(low) * u.per; {
	case x < 9.995:
		u.decimals = 2
	case x < 99.95:
		u.decimals = 1
	}
	if math.Abs(high)*u.per >= 1e4 {
		u.decimals = 0 // five digits fill the column
	}
	return u
}

func (u unit) number(seconds float64) string {
	return strconv.FormatFloat(seconds*u.per, 'f', u.decimals, 64)
}

// latency writes a time with its unit.
func latency(seconds float64) string {
	u := unitOf(seconds, seconds)
	return u.number(seconds) + nbsp + u.name
}

// leastPart is the least part of a whole that is worth naming: what is below rounds to no whole percent.
const leastPart = 0.005

// percent writes a part of one.
func percent(x float64) string {
	decimals := 0
	if p := math.Abs(100 * x); p > 0 && p < 1 {
		decimals = 1
	}
	return strconv.FormatFloat(100*x, 'f', decimals, 64) + nbsp + "%"
}

// absent writes why there is no value.
func absent(why string) string { return "unknown (" + why + ")" }

// count writes a whole number with its thousands apart.
func count(x float64) string {
	s := strconv.FormatFloat(math.Abs(math.Round(x)), 'f', 0, 64)
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	if x <= -0.5 {
		return "-" + b.String()
	}
	return b.String()
}

// bytes writes an amount of traffic in decimal units, as data sheets do.
func bytes(x float64) string {
	for _, u := range []struct {
		per  float64
		name string
	}{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if math.Abs(x) >= u.per {
			return fmt.Sprintf("%.3g", x/u.per) + nbsp + u.name
		}
	}
	return fmt.Sprintf("%.3g", x) + nbsp + "B"
}

// seconds writes a length of time.
func seconds(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return strconv.FormatFloat(s, 'f', decimalsOf(s), 64) + nbsp + "s"
	}
}

// stretch writes two times since the start of a report that is so many seconds long, as flags take them.
func stretch(from, to, long float64) string {
	if long < 10 {
		return fmt.Sprintf("%.1f-%.1f"+nbsp+"s", from, to)
	}
	if long < 600 {
		return fmt.Sprintf("%.0f-%.0f"+nbsp+"s", from, to)
	}
	clock := func(s float64) string {
		t := int(math.Round(s))
		if t >= 3600 {
			return fmt.Sprintf("%dh%02dm", t/3600, t/60%60)
		}
		return fmt.Sprintf("%dm%02ds", t/60, t%60)
	}
	return clock(from) + "-" + clock(to)
}

// decimalsOf keeps about three digits.
func decimalsOf(x float64) int {
	switch {
	case x >= 10 || x == math.Trunc(x):
		return 0
	case x >= 1:
		return 1
	}
	return 2
}

// plural writes n of a thing.
func plural(n int, thing string) string {
	if n == 1 {
		return "1" + nbsp + thing
	}
	return count(float64(n)) + nbsp + thing + "s"
}
