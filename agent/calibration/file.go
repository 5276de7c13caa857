// Package calibration measures how much of its peaks a GPU reaches with kernels whose bytes and operations are known,
// and keeps that per node. It knows no way to run kernels: a command that the user names does, and says on its output
// when each begins and ends. It never looks at a node's own load: a degraded node would calibrate itself healthy.
package calibration

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tpotscope/tpotscope/correlate/hardware"
	"github.com/tpotscope/tpotscope/correlate/timeline"
	"github.com/tpotscope/tpotscope/correlate/verdict"
)

// Schema names the format of the file.
const Schema = "tpotscope.calibration/1"

const (
	fileName    = "calibration.json"
	maxFileSize = 1 << 20
)

// Entry is the calibration of one GPU under one driver.
type Entry struct {
	UUID         string    `json:"uuid"`
	Name         string    `json:"name"`
	Driver       string    `json:"driver"`
	Time         time.Time `json:"time"`
	Simulated    bool      `json:"simulated,omitempty"`
	EtaBandwidth float64   `json:"eta_bandwidth"`        // mean DRAM utilisation under the best of the bandwidth kernels
	EtaTensor    float64   `json:"eta_tensor,omitempty"` // mean tensor activity under the product; zero: not measured
	BytesPerS    float64   `json:"bytes_per_second"`     // by the kernel's own count
	OpsPerS      float64   `json:"operations_per_second,omitempty"`
	SMClockHz    float64   `json:"sm_clock_hz,omitempty"` // sustained under the product; under the copy where that was not run
	MemClockHz   float64   `json:"mem_clock_hz,omitempty"`
	PowerLimitW  float64   `json:"power_limit_w,omitempty"`
	Windows      int       `json:"windows"`
}

// File is what a node keeps.
type File struct {
	Schema string  `json:"schema"`
	GPUs   []Entry `json:"gpus"`
}

// Path returns where a node keeps its calibration.
func Path(stateDir string) string { return filepath.Join(stateDir, fileName) }

// Load reads the calibration below stateDir. A node that has none is not calibrated, which is no error.
func Load(stateDir string) (File, error) {
	var f File
	st, err := os.Stat(Path(stateDir))
	if errors.Is(err, fs.ErrNotExist) || stateDir == "" {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("read calibration: %w", err)
	}
	if !st.Mode().IsRegular() { // a pipe would be waited for, a device never ends
		return f, fmt.Errorf("read calibration: %s is no file", Path(stateDir))
	}
	if st.Size() > maxFileSize {
		return f, fmt.Errorf("read calibration %s: %d bytes are too many", Path(stateDir), st.Size())
	}
	raw, err := os.ReadFile(Path(stateDir))
	if err != nil {
		return f, fmt.Errorf("read calibration: %w", err)
	}
	if f, err = Parse(raw); err != nil {
		return File{}, fmt.Errorf("read calibration %s: %w", Path(stateDir), err)
	}
	return f, nil
}

// Parse reads the file's text. A number that no kernel reaches is an error: what is loaded here decides verdicts.
func Parse(raw []byte) (File, error) {
	var f File
	if err := json.Unmarshal(raw, &f); err != nil {
		return File{}, fmt.Errorf("not JSON of that form: %w", err)
	}
	if f.Schema != Schema {
		return File{}, fmt.Errorf("schema %q is not %s", f.Schema, Schema)
	}
	for i, e := range f.GPUs {
		if e.UUID == "" || !(e.EtaBandwidth > 0 && e.EtaBandwidth <= 1) || !(e.EtaTensor >= 0 && e.EtaTensor <= 1) {
			return File{}, fmt.Errorf("gpus[%d]: want a uuid and parts of one", i)
		}
	}
	return f, nil
}

// Put sets the calibration of one GPU.
func (f *File) Put(e Entry) {
	f.Schema = Schema
	f.GPUs = slices.DeleteFunc(f.GPUs, func(o Entry) bool { return o.UUID == e.UUID })
	f.GPUs = append(f.GPUs, e)
	slices.SortFunc(f.GPUs, func(a, b Entry) int { return cmp.Compare(a.UUID, b.UUID) })
}

// Save writes the file below stateDir, whole or not at all.
func (f *File) Save(stateDir string) error {
	raw, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("write calibration: %w", err)
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("write calibration: %w", err)
	}
	temp := Path(stateDir) + ".new"
	err = writeSynced(temp, append(raw, '\n'))
	if err == nil {
		err = os.Rename(temp, Path(stateDir))
	}
	if err != nil {
		return fmt.Errorf("write calibration: %w", errors.Join(err, os.Remove(temp)))
	}
	return nil
}

// writeSynced writes a file that is on the disk when it returns: one that is renamed before may be empty after a loss of
// power.
func writeSynced(path string, raw []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Sync(), f.Close())
}

// Of returns what f says of a GPU, if it is of that GPU under the driver that runs.
func (f *File) Of(g timeline.GPU) (Entry, bool) {
	for _, e := range f.GPUs {
		if timeline.NormalizeUUID(e.UUID) == timeline.NormalizeUUID(g.UUID) {
			return e, e.Driver == g.Driver
		}
	}
	return Entry{}, false
}

// Eta returns what the calibration says the GPUs of that list reach, by UUID. What was not measured is the table's.
func (f *File) Eta(gpus []timeline.GPU) map[string]verdict.Eta {
	out := map[string]verdict.Eta{}
	for _, g := range gpus {
		e, ok := f.Of(g)
		if !ok {
			continue
		}
		hw, _ := hardware.IdentifyGPU(g) // of a GPU that is in no table the rest is assumed
		eta := verdict.EtaOf(hw)
		eta.Bandwidth, eta.BandwidthOrigin = e.EtaBandwidth, verdict.OriginCalibrated
		if e.EtaTensor > 0 {
			eta.Tensor, eta.TensorOrigin = e.EtaTensor, verdict.OriginCalibrated
		}
		out[g.UUID] = eta
	}
	return out
}

// Recorded is the part of a recording's configuration that holds what was in force and changes what is concluded.
type Recorded struct {
	Calibration  File `json:"calibration"`
	AllowForeign bool `json:"allow_foreign,omitempty"` // it was judged although other processes computed on the GPU
}

// AllowsForeign reports whether the agent that made a recording judged although other processes computed on the GPU.
func AllowsForeign(config json.RawMessage) bool {
	var r Recorded
	return json.Unmarshal(config, &r) == nil && r.AllowForeign
}

// OfRecording returns what the configuration of a recording says its GPUs reach; nil if it holds no calibration.
func OfRecording(config json.RawMessage, gpus []timeline.GPU) map[string]verdict.Eta {
	var r Recorded
	if json.Unmarshal(config, &r) != nil || len(r.Calibration.GPUs) == 0 {
		return nil
	}
	return r.Calibration.Eta(gpus)
}
