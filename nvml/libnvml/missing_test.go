package libnvml_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/nvml"
	"github.com/tpotscope/tpotscope/nvml/libnvml"
)

// use makes every call there is, of devices and instances.
func use(t *testing.T, lib *libnvml.Library, devices []nvml.Device) {
	t.Helper()
	var v timeline.Inventory
	for _, d := range devices {
		var r nvml.Reading
		for call := range nvml.Call(nvml.NumCalls) {
			d.Read(call, &r)
		}
		for call := nvml.CallProcesses; call <= nvml.CallTopology; call++ {
			_ = d.Survey(call, &v) // may not be there
		}
		for slot := range nvml.Slots {
			_ = d.Take(slot) // may not be there
		}
		if d.GPU().GPM {
			d.Between(0, 1, &r)
		}
	}
	_, _, _ = lib.Await(time.Millisecond)
	_, _ = lib.Changed()
}

// TestMissingInChild holds what TestEveryFunctionMayBeMissing runs in a process of its own: a call of a function that is
// not there would end it.
func TestMissingInChild(t *testing.T) {
	hidden, ok := strings.CutPrefix(os.Getenv(childVar), "HIDE=")
	if !ok {
		t.Skip("runs only as a child of TestEveryFunctionMayBeMissing")
	}
	lib, devices := open(t)
	for name := range strings.SplitSeq(hidden, ",") {
		if !slices.Contains(lib.Missing(), name) {
			t.Errorf("%s is not missing", name)
		}
	}
	if len(devices) < gpuCount {
		t.Errorf("%d devices, want all", len(devices))
	}
	use(t, lib, devices)
}

func TestEveryFunctionMayBeMissing(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	objects := objectsIn(t, dir)
	optional := libnvml.Optional()
	cases := map[string][]string{"all": optional}
	for _, name := range optional {
		cases[name] = []string{name}
	}
	for name, hidden := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
			link(t, path, objects, hidden)
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestMissingInChild$", "-test.v")
			cmd.Env = append(os.Environ(), childVar+"=HIDE="+strings.Join(hidden, ","), libraryVar+"="+path)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestMissingInChild") {
				t.Errorf("child: %v\n%s", err, out)
			}
		})
	}
}

// objectsIn compiles the simulated driver once.
func objectsIn(t *testing.T, dir string) []string {
	t.Helper()
	sources, err := filepath.Glob(filepath.Join("..", "sim", "driver", "*.c"))
	if err != nil {
		t.Fatal(err)
	}
	var objects []string
	for _, c := range sources {
		o := filepath.Join(dir, filepath.Base(c)+".o")
		if out, err := exec.CommandContext(t.Context(), "gcc", "-std=c11", "-O1", "-fPIC", "-c", "-o", o, c).CombinedOutput(); err != nil {
			t.Fatalf("compile %s: %v\n%s", c, err, out)
		}
		objects = append(objects, o)
	}
	return objects
}

// link makes a library without the hidden functions.
func link(t *testing.T, path string, objects, hidden []string) {
	t.Helper()
	script := path + ".map"
	if err := os.WriteFile(script, fmt.Appendf(nil, "{ global: *; local: %s; };\n", strings.Join(hidden, "; ")), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-shared", "-Wl,-soname,libnvidia-ml.so.1", "-Wl,--version-script=" + script, "-o", path}, objects...)
	if out, err := exec.CommandContext(t.Context(), "gcc", append(args, "-lm")...).CombinedOutput(); err != nil {
		t.Fatalf("link: %v\n%s", err, out)
	}
}
