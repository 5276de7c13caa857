package sim_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tpotscope/tpotscope/nvml/sim"
)

var update = flag.Bool("update", false, "write driver/page.h from the table")

func TestCHeaderAgreesWithTable(t *testing.T) {
	path := filepath.Join("driver", "page.h")
	if *update {
		if err := os.WriteFile(path, []byte(sim.CHeader()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sim.CHeader(), string(have)); diff != "" {
		t.Errorf("driver/page.h is not what the table says; run this test with -update (-table +page.h):\n%s", diff)
	}
}
