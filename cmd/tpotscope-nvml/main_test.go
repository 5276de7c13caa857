package main

import (
	"strings"
	"testing"
)

func TestMisuseIsExplained(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--period", "50ms"}, "plausible, wrong numbers"},
		{[]string{"--period", "50"}, "period"},
		{[]string{"extra"}, `"extra" is no flag`},
		{[]string{"--probe", "--library", "/nonexistent/libnvidia-ml.so.1"}, "driver library not found"},
	} {
		if err := run(c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want an error with %q", c.args, err, c.want)
		}
	}
}

func TestVersionNeedsNoDriver(t *testing.T) {
	if err := run([]string{"--version"}); err != nil {
		t.Error(err)
	}
}
