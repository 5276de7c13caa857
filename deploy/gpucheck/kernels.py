#!/usr/bin/env python3
"""Loads whose bytes and operations are known, for one NVIDIA GPU.

Without --load it runs a reading, a copying and a multiplying load and says so in the lines that `tpotscope doctor --calibrate --with`
takes. With --load it runs one load in steps, as a decoding engine does, and tells of each step when it ended, for gpucheck.py.

It needs PyTorch with CUDA. With --fake it needs nothing and runs nothing: it sleeps, and says what a load would have said. Figures of a
fake run are of no GPU.
"""

import argparse
import json
import signal
import sys
import time

LOADS = ("stream", "stream_half", "gemm", "gaps", "mixed")
GB = 1e9


def say(line):
    print(line, flush=True)


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Torch:
    """Loads on the GPU that CUDA_VISIBLE_DEVICES names."""

    SIDE = 8192  # of the square matrices: 134 MB each in bf16, more than any L2 holds

    def __init__(self, gigabytes):
        import torch

        if not torch.cuda.is_available():
            sys.exit("kernels.py: PyTorch sees no CUDA device")
        self.torch = torch
        free, _ = torch.cuda.mem_get_info()
        self.bytes = min(gigabytes * GB, 0.6 * free)

    def graph(self, work):
        """Captures work, so that no launch stands between two kernels of a step."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            work()
        return g

    def weights(self, size):
        """Vectors through matrices: every step reads all of them once."""
        torch = self.torch
        each = 2 * self.SIDE * self.SIDE
        count = max(1, int(size / each))
        layers = [torch.zeros(self.SIDE, self.SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(count)]
        x = torch.ones(self.SIDE, dtype=torch.bfloat16, device="cuda")

        def work():
            for w in layers:
                torch.mv(w, x)

        return self.graph(work), float(count * each)

    def product(self, count):
        torch = self.torch
        a = torch.randn(self.SIDE, self.SIDE, dtype=torch.bfloat16, device="cuda")
        b = torch.randn(self.SIDE, self.SIDE, dtype=torch.bfloat16, device="cuda")
        c = torch.empty_like(a)

        def work():
            for _ in range(count):
                torch.matmul(a, b, out=c)

        return self.graph(work), 2.0 * self.SIDE**3 * count

    def stepper(self, name):
        """Returns a function that runs one step to its end, its bytes (None: not known), its operations and its prompt tokens."""
        sync = self.torch.cuda.synchronize
        if name in ("stream", "stream_half"):
            g, size = self.weights(self.bytes / (2 if name == "stream_half" else 1))
            return lambda: (g.replay(), sync()), size, 0.0, 0
        if name == "gemm":
            g, ops = self.product(8)
            return lambda: (g.replay(), sync()), None, ops, 0
        if name == "gaps":
            g, size = self.weights(0.5 * GB)
            return lambda: (g.replay(), sync(), time.sleep(0.004)), size, 0.0, 0
        g, size = self.weights(self.bytes / 2)
        h, ops = self.product(4)
        return lambda: (g.replay(), h.replay(), sync()), None, ops, 512

    def calibrate(self, seconds):
        torch = self.torch
        n = int(self.bytes / 4 / 2)
        a = torch.ones(n, dtype=torch.float32, device="cuda")
        b = torch.empty_like(a)
        g, ops = self.product(8)
        for name, work, amount in (
            ("read", a.sum, {"bytes": 4.0 * n}),
            ("copy", lambda: b.copy_(a), {"bytes": 8.0 * n}),
            ("gemm", g.replay, {"flops": ops}),
        ):
            for _ in range(3):
                work()
            torch.cuda.synchronize()
            begun, rounds = time.monotonic(), 0
            say("begin " + name)
            while time.monotonic() - begun < seconds:
                for _ in range(8):
                    work()
                torch.cuda.synchronize()
                rounds += 8
            took = time.monotonic() - begun
            (key, each), = amount.items()
            say(f"end {name} {key}={each * rounds:.0f} seconds={took:.6f}")
            time.sleep(0.5)


class Fake:
    """No load at all: it sleeps as long as a load would take on a GPU that reaches what is written here."""

    PEAK = 3350e9  # bytes a second
    RATE = 989.4e12  # operations a second

    def __init__(self, gigabytes, log):
        self.bytes = gigabytes * GB
        self.log = log

    def mark(self, name):
        """Notes when a load begins and ends, for a simulated GPU to follow."""
        if self.log:
            with open(self.log, "a", encoding="ascii") as f:
                f.write(f"{now_ns()} {name}\n")

    def pace(self, seconds):
        """Returns a step of that length on the whole: each ends when it is due."""
        due = [None]

        def step():
            now = time.monotonic()
            due[0] = (due[0] or now) + seconds
            time.sleep(max(0.0, due[0] - now))

        return step

    def stepper(self, name):
        # The smallest step is long enough for sleeping to hit it.
        size = {"stream": self.bytes * 5, "stream_half": self.bytes * 5 / 2, "gaps": 4 * GB}.get(name)
        ops = {"gemm": 2e13, "mixed": 6e12}.get(name, 0.0)
        seconds = {
            "stream": lambda: size / (0.9 * self.PEAK),
            "stream_half": lambda: size / (0.9 * self.PEAK),
            "gemm": lambda: ops / (0.9 * self.RATE),
            "gaps": lambda: size / (0.15 * self.PEAK),
            "mixed": lambda: 0.02,
        }[name]()
        return self.pace(seconds), size, ops, 512 if name == "mixed" else 0

    def calibrate(self, seconds):
        time.sleep(1)
        for name, key, rate in (("read", "bytes", 0.9 * self.PEAK), ("gemm", "flops", 0.9 * self.RATE)):
            say("begin " + name)
            self.mark("stream" if name == "read" else "gemm")
            time.sleep(seconds)
            self.mark("rest")
            say(f"end {name} {key}={rate * seconds:.0f} seconds={seconds:.6f}")
            time.sleep(0.5)


def run(gpu, name, seconds):
    """Runs one load in steps, a request a second, a token a step."""
    step, size, ops, prompt = gpu.stepper(name)
    for _ in range(5):
        step()
    mark = getattr(gpu, "mark", lambda _: None)
    mark(name)
    try:
        play(step, name, size, ops, prompt, seconds)
    finally:
        mark("rest")


def play(step, name, size, ops, prompt, seconds):
    say(json.dumps({"begin": name, "bytes_per_step": size, "ops_per_step": ops, "at_ns": now_ns()}))
    begun, steps = now_ns(), 0
    while now_ns() - begun < seconds * 1e9:
        sent, tokens, told = now_ns(), [], 0
        while not tokens or tokens[-1] - sent < 1e9:
            step()
            tokens.append(now_ns())
            if tokens[-1] - sent > (told + 1) * 1e8:
                told += 1
                say(json.dumps({"tokens": steps + len(tokens), "prompt": prompt * (steps + len(tokens))}))
        steps += len(tokens)
        say(json.dumps({"tokens": steps, "prompt": prompt * steps}))
        say(json.dumps({"request": {"sent_ns": sent, "token_ns": tokens, "done_ns": now_ns()}}))
    took = (now_ns() - begun) / 1e9
    say(json.dumps({"end": name, "steps": steps, "seconds": took}))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--load", choices=LOADS, help="run this load in steps, and tell of each")
    p.add_argument("--seconds", type=float, default=6.0, help="how long each load runs")
    p.add_argument("--gigabytes", type=float, default=8.0, help="what a step of the streaming load reads")
    p.add_argument("--fake", action="store_true", help="run nothing, sleep")
    p.add_argument("--fake-log", default="", help="with --fake: note here when a load begins and ends")
    o = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    gpu = Fake(o.gigabytes, o.fake_log) if o.fake else Torch(o.gigabytes)
    if o.load:
        run(gpu, o.load, o.seconds)
    else:
        gpu.calibrate(o.seconds)


if __name__ == "__main__":
    main()
