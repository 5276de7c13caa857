package libnvml

import (
	"strings"
	"testing"
)

func TestAnUnknownDriverIsSaid(t *testing.T) {
	for version, want := range map[string]string{
		"580.95.05": "", "525.60.13": "", "610.1": "",
		"470.82.01": "older than R525", "999.1": "newer than R610", "beta": "names no branch", "": "names no branch",
	} {
		got := (&Library{version: version}).Note()
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("Note() of %q is %q, want %q", version, got, want)
		}
	}
}
