package calibration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tpotscope/tpotscope/agent/calibration"
)

// An agent that waits for somebody to write into a pipe measures nothing, and does not even end when asked to.
func TestWhatIsNoFileIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(calibration.Path(dir), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := calibration.Load(dir); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf("a pipe was loaded: %v", err)
	}
}

// What could not be written whole leaves nothing, and what was there stays.
func TestASaveThatFailsLeavesWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	f := calibration.File{}
	f.Put(calibration.Entry{UUID: "GPU-1", Driver: "580", EtaBandwidth: 0.9})
	if err := f.Save(dir); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		full := filepath.Join(dir, "full")
		if err := os.Mkdir(full, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tpotscope-test", full, "tmpfs", 0, "size=4k"); err == nil {
			defer func() { _ = unix.Unmount(full, 0) }()
			f.Put(calibration.Entry{UUID: "GPU-2", Name: strings.Repeat("n", 8192), Driver: "580", EtaBandwidth: 0.9})
			if err := f.Save(full); err == nil {
				t.Error("8 KB were saved in 4")
			}
			if left, err := os.ReadDir(full); err != nil || len(left) != 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		} else {
			t.Logf("no small file system can be mounted here: %v", err)
		}
	}
	again, err := calibration.Load(dir)
	if err != nil || len(again.GPUs) != 1 {
		t.Errorf("%d GPUs are loaded, %v; want one", len(again.GPUs), err)
	}
}
