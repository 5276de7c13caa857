package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
)

func TestTheHelpersLossIsSaidOnceAMinute(t *testing.T) {
	for name, tt := range map[string]struct {
		level slog.Level
		why   error
		want  []string // parts of each line
	}{
		"without a driver, in plain words": {slog.LevelInfo, nvml.ErrNoLibrary, []string{
			`level=WARN msg="no NVIDIA driver here: see tpotscope doctor"`, `see tpotscope doctor" repeated=5`,
		}},
		"for who debugs, in the driver's own": {slog.LevelDebug, nvml.ErrNoLibrary, []string{
			`level=WARN msg="no NVIDIA driver here`, `level=DEBUG msg="gpu helper lost" error="helper ended: driver library not found"`,
			"repeated=5", "level=DEBUG",
		}},
		"otherwise with its cause": {slog.LevelInfo, errors.New("it hangs"), []string{
			`level=WARN msg="gpu helper lost" cause="helper ended: it hangs"`, "repeated=5",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			now := timeline.Instant(0)
			log := newHelperLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: tt.level})), func() timeline.Instant { return now })
			for range 7 {
				log.Warn("gpu helper lost", slog.Any("error", errors.Join(errors.New("helper ended: "+tt.why.Error()))))
				now = now.Add(11 * time.Second)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(lines) != len(tt.want) {
				t.Fatalf("%d lines, want %d:\n%s", len(lines), len(tt.want), &out)
			}
			for i, want := range tt.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("line %d is %s, want %s in it", i, lines[i], want)
				}
			}
		})
	}
}

func TestAnotherLossIsSaidAtOnce(t *testing.T) {
	var out bytes.Buffer
	log := newHelperLog(slog.New(slog.NewTextHandler(&out, nil)), func() timeline.Instant { return 0 })
	log.Info("gpu helper", slog.String("line", "of its own"))
	log.Warn("gpu helper lost", slog.Any("error", errors.New("one")))
	log.Warn("gpu helper lost", slog.Any("error", errors.New("other")))
	log.Error("gpu helper does not die, abandoned", slog.Int("pid", 7))
	if n := strings.Count(out.String(), "\n"); n != 3 || !strings.Contains(out.String(), "pid=7") {
		t.Errorf("%d lines:\n%s", n, &out)
	}
}
