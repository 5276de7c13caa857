package main

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// measured makes the seconds of a soak in which the helper was replaced twice.
func measured(n int, memory, files func(i int) float64) *result {
	r := &result{o: options{soak: true}}
	for i := range n {
		life := 1 + min(2, 4*i/n)
		r.seconds = append(r.seconds, second{
			at: float64(i), rssA: memory(i), rssH: memory(i), fdsA: files(i), fdsH: files(i), helperLife: life,
		})
	}
	return r
}

func TestGrowthIsToldFromNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	noise := func() float64 { return 4e6 * rng.Float64() }
	sawtooth := func(i int) float64 { return 2e6 * float64(i%7) }
	none := func(int) float64 { return 40 }
	for name, tt := range map[string]struct {
		memory, files func(i int) float64
		grows         []bool // agent's memory, helper's memory, agent's files, helper's files
	}{
		"nothing grows":          {func(int) float64 { return 70e6 + noise() }, none, []bool{false, false, false, false}},
		"garbage comes and goes": {func(i int) float64 { return 70e6 + sawtooth(i) }, none, []bool{false, false, false, false}},
		"memory that grew at the start only": {
			func(i int) float64 { return 70e6 + 1e6*math.Min(float64(i), 60) }, none, []bool{false, false, false, false},
		},
		"four megabytes a minute": {
			func(i int) float64 { return 70e6 + 4e6/60*float64(i) + noise() }, none, []bool{true, true, false, false},
		},
		"half a megabyte a minute is less than may be": {
			func(i int) float64 { return 70e6 + 0.5e6/60*float64(i) }, none, []bool{false, false, false, false},
		},
		"a file each half a minute": {
			func(int) float64 { return 70e6 }, func(i int) float64 { return 40 + math.Floor(float64(i)/30) }, []bool{false, false, true, true},
		},
		"files that come and go": {
			func(int) float64 { return 70e6 }, func(i int) float64 { return 40 + float64(i%3) }, []bool{false, false, false, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := measured(300, tt.memory, tt.files)
			for i, c := range columns {
				if got, bad := r.grows(c); bad != tt.grows[i] {
					t.Errorf("%s: %+v, grows %v, want %v", strings.TrimSpace(c.name), got, bad, tt.grows[i])
				}
			}
		})
	}
}

func TestAHelperThatDoesNotSettleIsNotFlat(t *testing.T) {
	r := measured(300, func(int) float64 { return 1 }, func(int) float64 { return 1 })
	for i := range r.seconds {
		r.seconds[i].helperLife = i / 12 // it is replaced every twelve seconds
	}
	if _, bad := r.grows(columns[1]); !bad {
		t.Error("a helper that lives twelve seconds is called flat")
	}
}
