package hardware

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// UnknownError says that a name is in no table, and which names come nearest.
type UnknownError struct {
	Kind string // "gpu", "model", "dtype", ...
	Name string
	Near []string // nearest first; may be empty
}

// Error names the unknown name and the nearest known ones.
func (e *UnknownError) Error() string {
	if len(e.Near) == 0 {
		return fmt.Sprintf("unknown %s %q", e.Kind, e.Name)
	}
	return fmt.Sprintf("unknown %s %q (nearest: %s)", e.Kind, e.Name, strings.Join(e.Near, ", "))
}

func unknown(kind, name string, known []string) error {
	return &UnknownError{Kind: kind, Name: name, Near: Nearest(name, known, 3)}
}

// Nearest returns up to n of the candidates in the order of how close their spelling comes to name, leaving out those
// that are not close at all. Case and punctuation do not count.
func Nearest(name string, candidates []string, n int) []string {
	type match struct {
		name     string
		distance float64
	}
	key := spelling(name)
	var found []match
	for _, c := range candidates {
		k := spelling(c)
		d := float64(editDistance(key, k)) / float64(max(len(key), len(k), 1))
		if len(key) > 2 && strings.Contains(k, key) {
			d = min(d, 0.3)
		}
		if d <= 0.5 {
			found = append(found, match{c, d})
		}
	}
	slices.SortStableFunc(found, func(a, b match) int { return cmp.Compare(a.distance, b.distance) })
	var names []string
	for _, m := range found[:min(n, len(found))] {
		names = append(names, m.name)
	}
	return names
}

// maxSpelling bounds the work of comparing a hostile name.
const maxSpelling = 128

func spelling(s string) string {
	k := strings.ToLower(strings.Join(strings.FieldsFunc(s, notAlnum), ""))
	return k[:min(len(k), maxSpelling)]
}

// editDistance is the number of single-byte insertions, deletions and replacements between a and b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
