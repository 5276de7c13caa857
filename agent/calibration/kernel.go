package calibration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/tpotscope/tpotscope/correlate/timeline"
)

// Kernel is one known load that a command ran, as the command counts it.
type Kernel struct {
	Name    string        // "read" or "copy" move bytes, "gemm" multiplies matrices
	Over    timeline.Span // from its begin to its end, as they were said
	Bytes   float64       // moved to and from the GPU's memory
	Ops     float64       // a multiplication and an addition are two
	Seconds float64       // that the GPU took, by the command's own clock
}

// Protocol is what a kernel command has to say, a line each, on its standard output, flushed at once:
//
//	begin NAME                       a load begins within a few milliseconds
//	end NAME bytes=N seconds=S       it has ended, and moved N bytes in S seconds
//	end NAME flops=N seconds=S       it has ended, and did N floating-point operations in S seconds
//
// NAME is read or copy (bandwidth) or gemm (tensor cores); each should run for five seconds and more. Other lines are
// passed over. The command runs once a GPU, with CUDA_VISIBLE_DEVICES set to its UUID, and exits with 0.
const Protocol = "tpotscope kernel lines, version 1"

// maxLine bounds a line that a command says; maxKernels how many loads are taken.
const (
	maxLine    = 4096
	maxKernels = 64
)

// ReadKernels reads what a command says until it says no more. The clock is read as each line comes.
func ReadKernels(r io.Reader, now func() timeline.Instant) ([]Kernel, error) {
	var list []Kernel
	open := map[string]timeline.Instant{}
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, maxLine), maxLine)
	for sc.Scan() {
		at := now()
		words := strings.Fields(sc.Text())
		if len(words) < 2 || (words[0] != "begin" && words[0] != "end") {
			continue
		}
		name := words[1]
		if name != "read" && name != "copy" && name != "gemm" {
			return list, fmt.Errorf("read kernel lines: there is no load %.20q", name)
		}
		if words[0] == "begin" {
			open[name] = at
			continue
		}
		begun, ok := open[name]
		if !ok {
			return list, fmt.Errorf("read kernel lines: %s ends and has not begun", name)
		}
		delete(open, name)
		k, err := parseEnd(name, words[2:])
		if err != nil {
			return list, err
		}
		k.Over = timeline.Span{Start: begun, End: at}
		if list = append(list, k); len(list) > maxKernels {
			return list, errors.New("read kernel lines: too many loads")
		}
	}
	if err := sc.Err(); err != nil {
		return list, fmt.Errorf("read kernel lines: %w", err)
	}
	return list, nil
}

// parseEnd reads the figures of a load that ended.
func parseEnd(name string, words []string) (Kernel, error) {
	k := Kernel{Name: name}
	for _, w := range words {
		key, text, _ := strings.Cut(w, "=")
		var into *float64
		switch key {
		case "bytes":
			into = &k.Bytes
		case "flops":
			into = &k.Ops
		case "seconds":
			into = &k.Seconds
		default:
			continue
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return k, fmt.Errorf("read kernel lines: %s of %s is not a number above zero", key, name)
		}
		*into = v
	}
	if k.Seconds == 0 || (k.Ops == 0) == (name == "gemm") || (k.Bytes == 0) == (name != "gemm") {
		return k, fmt.Errorf("read kernel lines: %s does not say its seconds and its %s", name, map[bool]string{true: "flops", false: "bytes"}[name == "gemm"])
	}
	return k, nil
}

// runKernels runs the command on one GPU and returns the loads that it ran.
func runKernels(ctx context.Context, command, env []string, uuid string, now func() timeline.Instant) ([]Kernel, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(append([]string(nil), env...), "CUDA_VISIBLE_DEVICES="+uuid)
	cmd.WaitDelay = time.Second
	tail := &lastLine{}
	cmd.Stderr = tail
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", command[0], err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run kernels: %w", err)
	}
	list, errLines := ReadKernels(out, now)
	_, _ = io.Copy(io.Discard, out) // a command that is not understood still ends by itself
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("run %s: %w", command[0], ctx.Err())
		}
		return nil, fmt.Errorf("run %s: %w: %s", command[0], err, tail.text())
	}
	if errLines != nil {
		return nil, errLines
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("run %s: it ran no load", command[0])
	}
	return list, nil
}

// lastLine keeps the end of what is written to it.
type lastLine struct{ buf []byte }

// Write never fails.
func (l *lastLine) Write(p []byte) (int, error) {
	l.buf = append(l.buf, p...)
	l.buf = l.buf[max(0, len(l.buf)-maxLine):]
	return len(p), nil
}

func (l *lastLine) text() string {
	lines := strings.Split(strings.TrimSpace(string(l.buf)), "\n")
	return lines[len(lines)-1]
}
