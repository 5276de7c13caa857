#!/usr/bin/env python3
"""Holds tpotscope against an NVIDIA GPU: what the driver gives, how fast, and whether what is said of known loads is true.

It needs the two binaries (beside this file, or --bin), PyTorch with CUDA, and an idle GPU. It changes no setting of the GPU, takes less
than ten minutes, and writes result.json and result.md. It exits with 0 if nothing is off, and also where GPM cannot be read: that is a
result. It exits with 4 if something is off, and with 1 if it could not do its work.
"""

import argparse
import contextlib
import ctypes
import http.client
import http.server
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCHEMA = "tpotscope.gpucheck/1"
NOBODY = 65534
RATIO_BAND, ABSOLUTE_BAND, COST_BAND = 0.03, 0.10, 0.02
LABELS = {
    "stream": ("memory",),
    "stream_half": ("memory",),
    "gemm": ("compute",),
    "gaps": ("host", "launch", "host_or_launch"),
    "mixed": ("mixed", "memory", "compute", "balanced"),
}


class Engine:
    """Tells batch and token counts of the running load as an engine's own metrics do."""

    def __init__(self):
        self.running = self.tokens = self.prompt = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/metrics":
                    text = "".join(
                        f'vllm:{name}{{model_name="gpucheck"}} {value}\n'
                        for name, value in (
                            ("num_requests_running", outer.running),
                            ("num_requests_waiting", 0),
                            ("generation_tokens_total", outer.tokens),
                            ("prompt_tokens_total", outer.prompt),
                            ("num_preemptions_total", 0),
                        )
                    )
                elif self.path == "/v1/models":
                    text = '{"data":[{"id":"gpucheck"}]}'
                else:
                    self.send_error(404)
                    return
                body = text.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path):
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def submit(path, requests):
    """Hands finished requests to the agent, as any client without state does."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        boot = f.read().strip()
    body = {"origin": {"source": "gpucheck", "clock": "CLOCK_MONOTONIC", "bootId": boot}, "requests": []}
    for r in requests:
        body["requests"].append(
            {
                "target": "gpucheck", "model": "gpucheck", "operation": "text_completion", "sentNs": str(r["sent_ns"]),
                "tokenNs": [str(t) for t in r["token_ns"]], "doneNs": str(r["done_ns"]),
                "outputTokens": str(len(r["token_ns"])), "httpStatus": 200,
            }
        )
    c = UnixConnection(path)
    try:
        c.request("POST", "/tpotscope.ingest.v1.Ingest/Submit", json.dumps(body), {"Content-Type": "application/json"})
        answer = c.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the agent refused a report: {answer.status} {text[:200]!r}")
    finally:
        c.close()


def health(path):
    """What the agent that listens there says of itself."""
    c = UnixConnection(path)
    try:
        c.request("GET", "/healthz")
        return json.loads(c.getresponse().read())
    finally:
        c.close()


def reads(path):
    """Whether the agent that listens there reads its GPUs: for two seconds, so that its rates are found."""
    try:
        h = health(path)
    except (OSError, ValueError, http.client.HTTPException):
        return False
    gpus = h.get("gpus") or []
    return bool(gpus) and h["uptime_s"] > 2 and all(g["state"] == "ok" and g["newest_window_age_s"] < 1 for g in gpus)


class Check:
    """One run over one GPU."""

    def __init__(self, o):
        self.o = o
        self.work = tempfile.mkdtemp(prefix="gc")
        self.result = {"schema": SCHEMA, "fake": o.fake, "began_unix": int(time.time()), "checks": []}
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TPOTSCOPE_"))}
        if "TPOTSCOPE_NVML_SIM" in os.environ:  # a simulated driver finds its page by it
            self.env["TPOTSCOPE_NVML_SIM"] = os.environ["TPOTSCOPE_NVML_SIM"]

    # Reporting

    def note(self, name, state, detail, **numbers):
        """state: ok, off (does not hold), info (nothing to hold it against), skipped."""
        self.result["checks"].append({"name": name, "state": state, "detail": detail, **numbers})
        print(f"{state:8} {name:24} {detail}", flush=True)

    def binary(self, name):
        return os.path.join(self.o.bin, name)

    def tool(self, *args, timeout=60):
        extra = ["--set", "nvml.driver_library=" + self.o.driver] if self.o.driver else []
        return subprocess.run(
            [self.binary("tpotscope"), *args, *extra, "--set", "state_dir=" + os.path.join(self.work, "state")],
            capture_output=True, text=True, timeout=timeout, env=self.env, check=False,
        )

    def probe(self):
        args = ["--library", self.o.driver] if self.o.driver else []
        out = subprocess.run([self.binary("tpotscope-nvml"), "--probe", *args], capture_output=True, text=True, timeout=60, env=self.env, check=False)
        if out.returncode != 0:
            raise RuntimeError((out.stderr.strip().splitlines() or ["no word"])[-1])
        return json.loads(out.stdout)

    # What the driver gives

    def doctor(self):
        out = self.tool("doctor", "--json", "--engine", "http://127.0.0.1:9")
        report = json.loads(out.stdout)
        self.result["doctor"] = report
        gpus = report["gpus"]
        if not gpus:
            why = "; ".join(c["detail"] for c in report["checks"] if c["name"] in ("helper", "driver", "gpus") and c["state"] == "fail")
            self.note("doctor", "info", "no GPU can be read: " + why)
            return None
        gpu = gpus[self.o.gpu]
        self.result["gpu"] = gpu
        self.note("doctor", "info", f"{gpu['name']}, driver {gpu.get('driver', '?')}, GPM {'yes' if gpu['gpm'] else 'no'}")
        return gpu

    def latency(self):
        found = self.probe()
        self.result["probe"] = {k: found.get(k) for k in ("driver", "missing_functions", "latency", "updates", "capabilities")}
        mine = [c for c in found.get("latency") or [] if c["gpu"] == self.o.gpu]
        for c in mine:
            self.note("latency " + c["call"], "info", f"mean {c['mean_us']:.0f} us, p50 <= {c['p50_us']:.0f} us, p99 <= {c['p99_us']:.0f} us, most {c['max_us']:.0f} us over {c['count']}")
        updates = {u["counter"]: u["every_ms"] for u in found.get("updates") or [] if u["gpu"] == self.o.gpu}
        self.note("update periods", "info", ", ".join(f"{k} {v:.0f} ms" for k, v in sorted(updates.items())) or "nothing changed while it was looked at", periods_ms=updates)
        return {c["call"]: c["state"] for c in found.get("capabilities") or [] if c["gpu"] == self.o.gpu}

    def permission(self):
        if os.geteuid() != 0:
            self.note("permission", "info", "this ran without root: what is read above is what anybody may read")
            return
        place = tempfile.mkdtemp(prefix="gcn", dir="/tmp")
        try:
            os.chmod(place, 0o755)
            shutil.copy(self.binary("tpotscope-nvml"), place)
            args = ["--library", self.o.driver] if self.o.driver else []
            out = subprocess.run([os.path.join(place, "tpotscope-nvml"), "--probe", *args], capture_output=True, text=True, timeout=60, env=self.env, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", check=False)
            if out.returncode != 0:
                self.note("permission", "info", "as nobody the driver cannot be read: " + (out.stderr.strip().splitlines() or ["no word"])[-1])
                return
            states = {c["call"]: c["state"] for c in json.loads(out.stdout).get("capabilities") or [] if c["gpu"] == self.o.gpu}
            self.note("permission", "info", f"as nobody DRAM activity is: {states.get('dram_util', 'not told')}", states=states)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def windows(self):
        """How GPM behaves at windows of several lengths, and whether its counters are refreshed by themselves."""
        try:
            import pynvml as n
        except ImportError:
            self.note("windows", "skipped", "nvidia-ml-py is not installed (pip install nvidia-ml-py): behaviour at 50 to 200 ms and of the refresh is not looked at")
            return
        if self.o.driver:
            ctypes.CDLL(self.o.driver)  # what has this name already is not looked for
        load = self.start_load("stream", 40, listen=False)
        try:
            time.sleep(2 if self.o.fake else 8)
            n.nvmlInit()
            h = n.nvmlDeviceGetHandleByUUID(self.result["gpu"]["uuid"])
            out = {}
            for ms in (50, 100, 110, 200):
                values = [v for v in (self.window(n, h, ms / 1e3) for _ in range(20)) if v is not None]
                out[ms] = {"read": len(values), "mean": statistics.fmean(values) if values else None, "sd": statistics.pstdev(values) if values else None}
            text = ", ".join(f"{ms} ms: {w['mean']:.3f} +- {w['sd']:.3f} ({w['read']} of 20)" if w["read"] else f"{ms} ms: none" for ms, w in out.items())
            self.note("windows", "info", "DRAM activity under a steady load over " + text, windows=out)
            self.refresh(n, h)
            n.nvmlShutdown()
        except n.NVMLError as e:
            self.note("windows", "info", f"nvidia-ml-py: {e}")
        finally:
            load.terminate()
            load.communicate()

    @staticmethod
    def between(n, a, b):
        m = n.c_nvmlGpmMetricsGet_t()
        m.version, m.numMetrics, m.sample1, m.sample2 = n.NVML_GPM_METRICS_GET_VERSION, 1, a, b
        m.metrics[0].metricId = n.NVML_GPM_METRIC_DRAM_BW_UTIL
        n.nvmlGpmMetricsGet(m)
        v = m.metrics[0].value / 100
        return v if m.metrics[0].nvmlReturn == 0 and v == v else None

    def window(self, n, h, seconds):
        a, b = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
        try:
            n.nvmlGpmSampleGet(h, a)
            time.sleep(seconds)
            n.nvmlGpmSampleGet(h, b)
            return self.between(n, a, b)
        finally:
            n.nvmlGpmSampleFree(a)
            n.nvmlGpmSampleFree(b)

    def refresh(self, n, h):
        """Reads against one old snapshot at two paces: a refresh of the driver's own shows the same period at both."""
        found = {}
        for pace in (0.007, 0.023):
            base, s = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
            n.nvmlGpmSampleGet(h, base)
            last, changes, end = None, [], time.monotonic() + 3
            while time.monotonic() < end:
                n.nvmlGpmSampleGet(h, s)
                v = self.between(n, base, s)
                if v is not None and v != last:
                    changes.append(time.monotonic())
                    last = v
                time.sleep(pace)
            n.nvmlGpmSampleFree(base)
            n.nvmlGpmSampleFree(s)
            gaps = [b - a for a, b in zip(changes, changes[1:])]
            found[f"{pace * 1e3:.0f} ms"] = statistics.median(gaps) * 1e3 if gaps else None
        values = [v for v in found.values() if v]
        if len(values) < 2:
            text = "values did not change often enough to tell"
        elif max(values) > 40 and max(values) < 1.35 * min(values):
            text = f"the counters refresh by themselves, every {statistics.fmean(values):.0f} ms"
        else:
            text = "the counters refresh when they are read: " + ", ".join(f"every {v:.0f} ms at looks every {k}" for k, v in found.items() if v)
        self.note("refresh", "info", text, change_every_ms=found)

    # Loads

    def kernels(self):
        cmd = [self.o.python, os.path.join(HERE, "kernels.py"), "--gigabytes", str(self.o.gigabytes)]
        if self.o.fake:
            cmd += ["--fake", "--fake-log", self.o.fake_log]
        return cmd

    def start_load(self, name, seconds, listen=True):
        env = dict(self.env, CUDA_VISIBLE_DEVICES=self.result["gpu"]["uuid"])
        return subprocess.Popen([*self.kernels(), "--load", name, "--seconds", str(seconds)], stdout=subprocess.PIPE if listen else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)

    def play(self, name, seconds, engine, sock=None):
        """Runs one load to its end, tells the engine's figures and hands each request to the agent that listens on sock."""
        load = self.start_load(name, seconds)
        facts, before, before_prompt, times = {}, engine.tokens, engine.prompt, []
        for line in load.stdout:
            word = json.loads(line)
            if "begin" in word:
                facts, engine.running = word, 1
            if "tokens" in word:
                engine.tokens, engine.prompt = before + word["tokens"], before_prompt + word["prompt"]
            if "request" in word:
                times.append(word["request"]["token_ns"])
                if sock:
                    submit(sock, [word["request"]])
            if "end" in word:
                facts = {**facts, **word}
        engine.running = 0
        err = load.stderr.read()
        if load.wait() != 0 or "steps" not in facts:
            raise RuntimeError("kernels.py failed: " + (err.strip().splitlines() or ["no word"])[-1])
        facts["tpot_s"] = statistics.median((t[-1] - t[0]) / (len(t) - 1) / 1e9 for t in times if len(t) > 1)
        return facts

    @contextlib.contextmanager
    def agent(self, name, engine):
        """Runs an agent of its own recording, and yields its socket."""
        place = os.path.join(self.work, name)
        os.makedirs(place)
        config = {
            "state_dir": os.path.join(self.work, "state"), "socket": os.path.join(place, "a.sock"), "metrics": {"listen": ""},
            "nvml": {"driver_library": self.o.driver}, "record": {"dir": os.path.join(place, "run")},
            "targets": [{"name": "gpucheck", "engine_url": engine.url, "gpus": [self.result["gpu"]["uuid"]]}],
        }
        path = os.path.join(place, "config.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)  # JSON is YAML
        log = open(os.path.join(place, "log"), "wb")
        p = subprocess.Popen([self.binary("tpotscope"), "agent", "--config", path], stdout=log, stderr=log, env=self.env)
        try:
            end = time.monotonic() + 60  # the helper opens the driver, which takes seconds without persistence mode, and finds its rates
            while not reads(config["socket"]):
                if p.poll() is not None or time.monotonic() > end:
                    with open(log.name, encoding="utf-8") as f:
                        raise RuntimeError("the agent did not start, or reads no GPU: " + f.read()[-300:])
                time.sleep(0.1)
            time.sleep(1)
            yield config["socket"], config["record"]["dir"]
        finally:
            time.sleep(2.5)  # the last cell waits for what is late
            p.send_signal(signal.SIGTERM)
            p.wait(30)
            log.close()

    def calibrate(self):
        words = " ".join(f"'{w}'" for w in [*self.kernels(), "--seconds", str(max(3.0, self.o.seconds / 3))])
        out = self.tool("doctor", "--json", "--engine", "http://127.0.0.1:9", "--calibrate", "--with", words, timeout=180)
        found = (json.loads(out.stdout).get("calibration") or [{}])[self.o.gpu]
        self.result["calibration"] = found
        if found.get("refused") or not found.get("calibration"):
            self.note("calibration", "off", found.get("refused") or "nothing was measured")
            return
        e = found["calibration"]
        self.note("calibration", "ok", f"DRAM reaches {e['eta_bandwidth']:.3f}, tensor cores {e.get('eta_tensor', 0):.3f} at {e.get('sm_clock_hz', 0) / 1e6:.0f} MHz; counted bytes are {found['scale']:.3f} of the counter's")

    def loads(self, engine):
        """Plays each load under an agent, and holds what it says against what is known."""
        seen = {}
        for name in self.o.loads:
            with self.agent(name, engine) as (sock, run):
                facts = self.play(name, self.o.seconds, engine, sock)
            out = self.tool("report", run, "--json")
            if out.returncode not in (0, 3):
                raise RuntimeError("report: " + out.stderr.strip()[-300:])
            report = json.loads(out.stdout)
            d = report["decode"]
            seen[name] = {"known": facts, "decode": d, "tpot_s": report["tpot_s"], "warnings": report["warnings"]}
            bound = d.get("bound")
            text = f"{bound} ({self.shares(d) or d.get('reason', '')}; {d.get('confidence')} confidence)"
            self.note("verdict " + name, "ok" if bound in LABELS[name] else "off", text)
        self.result["loads"] = seen
        self.bytes(seen)

    @staticmethod
    def shares(decode):
        """The split of the whole load's time, and where no label holds all of it, of its cells: a reason is of one cell."""
        split = decode.get("shares") or {}
        parts = [f"{k} {100 * v:.0f} %" for k, v in sorted(split.items(), key=lambda kv: -kv[1]) if isinstance(v, (int, float)) and v >= 0.005] if isinstance(split, dict) else []
        cells = decode.get("mixture") or []
        if len(cells) > 1:
            parts += ["cells: " + ", ".join(f"{p['label']} {100 * p['share']:.0f} %" for p in cells)]
            parts += [decode.get("reason", "")] if decode.get("bound") == "undetermined" else []
        return ", ".join(p for p in parts if p)

    def bytes(self, seen):
        """Holds measured bytes a step against known ones: absolutely, and as the ratio of two loads."""
        measured = {}
        for name in (n for n in ("stream", "stream_half") if n in seen):
            m, known = seen[name]["decode"]["bytes_per_token"]["measured"], seen[name]["known"]["bytes_per_step"]
            if not isinstance(m, (int, float)):
                self.note("bytes " + name, "off", f"not measured: {m}")
                return
            measured[name] = m
            off = m / known - 1
            self.note("bytes " + name, "ok" if abs(off) <= ABSOLUTE_BAND else "off", f"{m / 1e9:.2f} GB a step measured, {known / 1e9:.2f} GB known ({100 * off:+.1f} %)", ratio=m / known)
        if len(measured) < 2:
            return
        known = seen["stream"]["known"]["bytes_per_step"] / seen["stream_half"]["known"]["bytes_per_step"]
        ratio = measured["stream"] / measured["stream_half"]
        off = ratio / known - 1
        self.note("ratio of loads", "ok" if abs(off) <= RATIO_BAND else "off", f"{ratio:.3f} measured, {known:.3f} known ({100 * off:+.1f} %)", ratio=ratio / known)

    def cost(self, engine):
        """The load's own time per token with and without an agent, in the order on, off, off, on."""
        seconds, on, off = self.o.seconds * 0.6, [], []
        for k, with_agent in enumerate((True, False, False, True)):
            if with_agent:
                with self.agent(f"on{k}", engine) as (sock, _):
                    on.append(self.play("stream", seconds, engine, sock)["tpot_s"])
            else:
                off.append(self.play("stream", seconds, engine)["tpot_s"])
        change = statistics.fmean(on) / statistics.fmean(off) - 1
        noise = max(abs(on[0] / on[1] - 1), abs(off[0] / off[1] - 1))
        state = "info" if self.o.fake else "ok" if change <= max(COST_BAND, noise) else "off"
        self.note("cost", state, f"{100 * change:+.2f} % of a step's time with the agent on; runs alike differ by {100 * noise:.2f} %", on_s=on, off_s=off)

    # The whole

    def run(self):
        gpu = self.doctor()
        if gpu is None:
            return
        states = self.latency()
        self.permission()
        if not gpu["gpm"] or states.get("dram_util") not in ("ok", "untrusted"):  # a GPU at rest shows little to trust
            why = "this GPU has none" if not gpu["gpm"] else states.get("dram_util", "not told")
            self.note("gpm", "info", f"GPM not reachable here: {why}. Nothing can be said of what bounds decode; that is a result")
            return
        self.note("gpm", "ok", f"activity windows can be read (at rest: {states['dram_util']})")
        if "windows" not in self.o.skip:
            self.windows()
        if "calibration" not in self.o.skip:
            self.calibrate()
        engine = Engine()
        try:
            if "loads" not in self.o.skip:
                self.loads(engine)
            if "cost" not in self.o.skip:
                self.cost(engine)
        finally:
            engine.close()

    def write(self):
        self.result["took_s"] = round(time.time() - self.result["began_unix"], 1)
        self.result["simulated"] = bool((self.result.get("doctor") or {}).get("simulated"))
        os.makedirs(self.o.out, exist_ok=True)
        with open(os.path.join(self.o.out, "result.json"), "w", encoding="utf-8") as f:
            json.dump(self.result, f, indent=1)
        lines = ["# gpucheck", ""]
        if self.o.fake:
            lines += ["**FAKE: nothing was run on a GPU; these figures are of no device.**", ""]
        if self.result["simulated"]:
            lines += ["**SIMULATED driver: these figures are of a model.**", ""]
        lines += ["| check | state | found |", "|---|---|---|"]
        lines += [f"| {c['name']} | {c['state']} | {c['detail'].replace('|', '/')} |" for c in self.result["checks"]]
        lines += ["", f"It took {self.result['took_s']:.0f} s."]
        with open(os.path.join(self.o.out, "result.md"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = os.path.join(HERE, "..", "..", "bin")
    p.add_argument("--bin", default=HERE if os.path.exists(os.path.join(HERE, "tpotscope")) else beside, help="folder of the two binaries")
    p.add_argument("--out", default="gpucheck-result", help="folder for result.json and result.md")
    p.add_argument("--python", default=sys.executable, help="interpreter with PyTorch")
    p.add_argument("--gpu", type=int, default=0, help="which of the GPUs that doctor lists")
    p.add_argument("--seconds", type=float, default=20.0, help="how long each load runs")
    p.add_argument("--gigabytes", type=float, default=8.0, help="what a step of the streaming load reads")
    p.add_argument("--loads", nargs="+", choices=list(LABELS), default=list(LABELS), help="only these loads")
    p.add_argument("--skip", nargs="+", choices=("windows", "calibration", "loads", "cost"), default=[], help="leave these parts out")
    p.add_argument("--library", dest="driver", default="", help="the driver's library, where it is not found by itself")
    p.add_argument("--fake", action="store_true", help="run no load, sleep: a test of this script")
    p.add_argument("--fake-log", default="", help="with --fake: where loads are noted for a simulated GPU")
    o = p.parse_args()
    check = Check(o)
    code = 0
    try:
        check.run()
    except (RuntimeError, OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
        check.note("gpucheck", "off", f"could not go on: {type(e).__name__}: {e}")
        code = 1
    check.write()
    shutil.rmtree(check.work, ignore_errors=True)
    if code == 0 and any(c["state"] == "off" for c in check.result["checks"]):
        code = 4
    sys.exit(code)


if __name__ == "__main__":
    main()
