package summary_test

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tpotscope/tpotscope/correlate"
	"github.com/tpotscope/tpotscope/correlate/summary"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// labelled returns the report of cells of the given labels, one letter a second: m memory, h host, x mixed, u
// undetermined, a space for a second without decode.
func labelled(letters string) *summary.Report {
	b := summary.New(summary.Config{})
	for i := range letters {
		c := labelledCell(letters[i], i)
		b.AddCell(&c)
	}
	return b.Report()
}

func labelledCell(letter byte, i int) correlate.Cell {
	c := memoryCell(rand.New(rand.NewPCG(1, uint64(i))), i, 1)
	v := &c.Verdict
	switch letter {
	case 'h':
		v.Label, v.Shares, v.D = timeline.Host, timeline.Shares{Host: 0.8, Memory: 0.2}, 0.2
	case 'x':
		v.Label, v.Mixed = timeline.Mixed, true
	case 'u':
		*v = verdict.Withhold(verdict.ReasonWindows)
	case ' ':
		c.Decode = false
	}
	return c
}

func TestStretchesTellWhatChangedWhen(t *testing.T) {
	m, h, x := timeline.Memory, timeline.Host, timeline.Mixed
	long := strings.Repeat
	tests := []struct {
		name, letters string
		want          []summary.Stretch
	}{
		{"one label has no stretches", long("m", 60), nil},
		{"a label of less than a tenth is not worth telling", long("m", 55) + long("h", 5), nil},
		{"one change", long("m", 30) + long("h", 30), []summary.Stretch{
			{Label: m, EndS: 30, Seconds: 30, Share: 0.5}, {Label: h, StartS: 30, EndS: 60, Seconds: 30, Share: 0.5},
		}},
		{"a blip is part of what is around it", long("m", 20) + "x" + long("m", 19) + long("h", 40), []summary.Stretch{
			{Label: m, EndS: 40, Seconds: 40, Share: 0.5}, {Label: h, StartS: 40, EndS: 80, Seconds: 40, Share: 0.5},
		}},
		{"what is short between two that last blurs the longer", long("x", 40) + "mmm" + long("h", 25), []summary.Stretch{
			{Label: x, EndS: 43, Seconds: 43, Share: 43. / 68}, {Label: h, StartS: 43, EndS: 68, Seconds: 25, Share: 25. / 68},
		}},
		{"idle time ends no stretch and counts for none", long("m", 20) + long(" ", 100) + long("m", 20) + long("x", 40), []summary.Stretch{
			{Label: m, EndS: 140, Seconds: 40, Share: 0.5}, {Label: x, StartS: 140, EndS: 180, Seconds: 40, Share: 0.5},
		}},
		{"what flickers all along has no stretches", long("mh", 100), nil},
		{"missing verdicts are a stretch", long("u", 30) + long("m", 30), []summary.Stretch{
			{Label: timeline.Undetermined, EndS: 30, Seconds: 30, Share: 0.5}, {Label: m, StartS: 30, EndS: 60, Seconds: 30, Share: 0.5},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, labelled(tt.letters).Decode.OverTime, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Errorf("stretches mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAMixedRunSaysThatItsLabelChanges(t *testing.T) {
	changes := labelled(strings.Repeat("m", 30) + strings.Repeat("h", 30)).Decode
	if changes.Bound != timeline.Mixed || !strings.HasPrefix(changes.Reason, verdict.ReasonChanging) || !strings.Contains(changes.Reason, "--since") {
		t.Errorf("half memory, then half host: %s (%s)", changes.Bound, changes.Reason)
	}
	if d := labelled(strings.Repeat("mh", 100)).Decode; d.Bound != timeline.Mixed || strings.Contains(d.Reason, "--since") {
		t.Errorf("no part of a flicker is of one label: %s (%s)", d.Bound, d.Reason)
	}
	if d := labelled(strings.Repeat("x", 60)).Decode; strings.Contains(d.Reason, "--since") {
		t.Errorf("prompts in all steps are no change: %s (%s)", d.Bound, d.Reason)
	}
}

func TestStretchesCoverTheDecodeAndAreFew(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	for trial := range 20 {
		var b strings.Builder
		for b.Len() < 4000 {
			letter := "mhxu "[rng.IntN(5)]
			for range 1 + int(rng.ExpFloat64()*float64(1+trial*trial)) {
				b.WriteByte(letter)
			}
		}
		letters := b.String()
		r := labelled(letters)
		over := r.Decode.OverTime
		if len(over) > 8 || len(over) == 1 {
			t.Fatalf("%d stretches", len(over))
		}
		var seconds, share float64
		for i, s := range over {
			seconds, share = seconds+s.Seconds, share+s.Share
			if s.Seconds > s.EndS-s.StartS+1e-9 || s.Share < 0.05 || i > 0 && (s.StartS < over[i-1].EndS || s.Label == over[i-1].Label) {
				t.Fatalf("stretch %d of %+v", i, over)
			}
		}
		want := float64(len(letters) - strings.Count(letters, " "))
		if len(over) > 0 && (math.Abs(seconds-want) > 1e-6 || math.Abs(share-1) > 1e-9) {
			t.Fatalf("stretches of %v s and %v of the decode, want %v s and all", seconds, share, want)
		}
	}
}

func TestStretchesAreByTarget(t *testing.T) {
	b := summary.New(summary.Config{})
	for i := range 40 {
		one := labelledCell("mh"[i/20], i)
		two := labelledCell('m', i)
		one.Target, two.Target = "one", "two"
		b.AddCell(&one)
		b.AddCell(&two)
	}
	r := b.Report()
	if len(r.Decode.OverTime) != 2 || r.Decode.OverTime[0].Target != "one" || r.Decode.OverTime[1].StartS != 20 {
		t.Errorf("stretches %+v, want two of target one", r.Decode.OverTime)
	}
	var back summary.Report
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte(`"over_time":[{"target":"one","label":"memory","start_s":0,"end_s":20,"seconds":20,"share":0.5}`)) || len(back.Decode.OverTime) != 2 {
		t.Errorf("over_time is not in %s", text)
	}
}

func TestSharesStayWhereNoneLeads(t *testing.T) {
	b := summary.New(summary.Config{})
	for i := range 30 {
		c := labelledCell('m', i)
		c.Verdict.Label, c.Verdict.Reason = timeline.Undetermined, verdict.ReasonNoShare
		b.AddCell(&c)
	}
	d := b.Report().Decode
	if d.Bound != timeline.Undetermined || d.Reason != verdict.ReasonNoShare || !d.Shares.OK() || math.Abs(d.Shares.Value.Sum()-1) > 1e-9 {
		t.Errorf("got %s (%s), shares %+v", d.Bound, d.Reason, d.Shares)
	}
}
