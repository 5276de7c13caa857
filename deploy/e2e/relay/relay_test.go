package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// reply is a whole reply of n events, without the transfer coding.
func reply(n int) string {
	var b strings.Builder
	for i := range n {
		c := newChunk()
		c.set(timeline.Instant(1_000_000*(i+1)), i)
		_, payload, _ := strings.Cut(string(c.bytes), "\r\n")
		b.WriteString(strings.TrimSuffix(payload, "\r\n"))
	}
	fmt.Fprintf(&b, "%s%sdata: [DONE]\n\n", replyFinish, fmt.Sprintf(replyUsage, n))
	return b.String()
}

// seen feeds pieces to a scanner and tells what it found.
func seen(pieces ...string) string {
	var s scanner
	var found []string
	done := false
	for _, p := range pieces {
		done = s.feed([]byte(p), func(at timeline.Instant, number int) { found = append(found, fmt.Sprint(at, ":", number)) }) || done
	}
	return fmt.Sprint(found, done)
}

func TestEventsAreFoundWhereverTheStreamIsCut(t *testing.T) {
	all := reply(3)
	want := "[1000000:0 2000000:1 3000000:2] true"
	for cut := range len(all) {
		if got := seen(all[:cut], all[cut:]); got != want {
			t.Fatalf("cut at %d: found %s, want %s", cut, got, want)
		}
	}
	if got := seen(strings.SplitAfter(all, "")...); got != want {
		t.Errorf("in single bytes: found %s, want %s", got, want)
	}
}

func TestAnEventHasTheSizeOfARealOne(t *testing.T) {
	if n := len(newChunk().bytes); n < 200 || n > 250 {
		t.Errorf("an event has %d bytes on the wire, want 200 to 250", n)
	}
}

func FuzzScanner(f *testing.F) {
	f.Add(reply(2), 7)
	f.Add(`data: {"delta":{"content":"`+"\n\n", 3)
	f.Fuzz(func(t *testing.T, stream string, size int) {
		var pieces []string
		for p := range slices.Chunk([]byte(stream), max(size&0xff, 1)) {
			pieces = append(pieces, string(p))
		}
		if got, want := seen(pieces...), seen(stream); got != want {
			t.Errorf("in pieces of %d: found %s, want %s", size, got, want)
		}
	})
}

func TestProcessTimesAreReadBehindAnyName(t *testing.T) {
	line := "42 (a ) b) S 7 42 42 0 -1 4194304 100 0 0 0 12 34 0 0 20 0 1 0 100 1000 10 18446744073709551615 0"
	s, err := parseStat(line)
	if want := (stat{7, 460 * time.Millisecond}); err != nil || s != want {
		t.Errorf("parseStat() = %v, %v, want %v", s, err, want)
	}
	if _, err := parseStat("42 (short) S 7"); err == nil {
		t.Error("parseStat() took a line that breaks off")
	}
}

func TestABarIsJudgedByTheRatioOfMedians(t *testing.T) {
	b := bar{"added p50", wayNginx, 1.25, ofP50}
	way := func(rounds ...time.Duration) summary { return summary{p50: rounds, medP50: median(rounds)} }
	for _, tt := range []struct {
		name       string
		mine, peer summary
		want       string
	}{
		{"at the bar it holds", way(125, 125, 400), way(100, 100, 100), "holds"},
		{"above the bar it is missed", way(126, 126, 1), way(100, 100, 100), "MISSED"},
		{"a peer that adds nothing gives no ratio", way(5, 5, 5), way(-1, -1, 9), "?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := b.judge(tt.mine, tt.peer); !strings.HasPrefix(got, tt.want) {
				t.Errorf("judge() = %q, want it to begin with %q", got, tt.want)
			}
		})
	}
}

func TestLatencyIsWhatAWayAddsInItsOwnRound(t *testing.T) {
	direct := []result{{p50: 10, p99: 100}, {p50: 30, p99: 300}, {p50: 20, p99: 200}}
	s := summarise("w", []result{{p50: 15, p99: 110, lost: 1}, {p50: 36, p99: 330}, {p50: 27, p99: 220, lost: 2}}, direct)
	if s.medP50 != 6 || s.medP99 != 20 || s.lost != 3 {
		t.Errorf("summarise() gives %v, %v and %d lost, want 6ns, 20ns and 3", s.medP50, s.medP99, s.lost)
	}
}
