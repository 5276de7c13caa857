"""The bench that the checks run on: an engine, an agent, a proxy, a recording relay, an OTLP receiver, a packet capture."""

import os
import pathlib
import subprocess
import sys
import time

import capture
import http1
import lab
import recording
import tee

HERE = pathlib.Path(__file__).parent


class Bench:
    """An engine, a recording relay before it, an agent with a proxy inside, and two proxies of their own before the relay, the second
    of which asks for the final usage where a client does not."""

    def __init__(self, given, folder, stack, name, relayed):
        self.given, self.folder, self.name = given, pathlib.Path(folder, name), name
        self.folder.mkdir()
        self.state = self.folder / "state"
        self.engine_port, self.direct, self.door = lab.free_port(), lab.free_port(), lab.free_port()
        self.engine = self.start(stack, "engine", sys.executable, str(HERE / "server.py"), "--model", given.model, "--port",
                                 str(self.engine_port), stdin=subprocess.PIPE, outside=True).ready("ready")
        self.otlp = lab.Receiver()
        stack.callback(self.otlp.stop)
        url = f"http://127.0.0.1:{self.engine_port}"
        socket = self.folder / "agent.sock"
        settings = {"state_dir": self.state, "socket": socket, "metrics.listen": f"127.0.0.1:{self.door}", "nvml.source": "off",
                    "otlp.endpoint.url": f"http://127.0.0.1:{self.otlp.port}", "otlp.endpoint.protocol": "http/protobuf",
                    "otlp.endpoint.compression": "gzip", "otlp.spans.enabled": "true"}
        sets = [part for k, v in settings.items() for part in ("--set", f"{k}={v}")]
        self.agent = self.start(stack, "agent", given.tpotscope, "agent", "--engine", url, "--listen", f"127.0.0.1:{self.direct}",
                                "--upstream", url, "--log-level", "debug", *sets).ready("agent ready")
        self.tee, self.proxies = None, []
        if relayed:
            self.tee = tee.Tee(lab.free_port(), self.engine_port)
            stack.callback(self.tee.stop)
            self.relayed, self.asking = lab.free_port(), lab.free_port()
            for name, port, more in (("proxy", self.relayed, []), ("proxy-asking", self.asking, ["--inject-usage"])):
                argv = ["proxy", "--listen", f"127.0.0.1:{port}", "--upstream", f"http://127.0.0.1:{self.tee.port}", "--agent", f"unix:{socket}"]
                self.proxies.append(self.start(stack, name, given.tpotscope, *argv, "--log-level", "debug", *more))
                lab.wait_for(name, lambda port=port: lab.connects(port))

    def start(self, stack, name, *argv, stdin=subprocess.DEVNULL, outside=False):
        """Starts a process. The engine's own log holds content and stays outside of what is searched."""
        folder = self.folder.parent if outside else self.folder
        p = lab.Process(f"{name}-{self.name}" if outside else name, argv, folder, stdin)
        stack.callback(p.stop)
        return p

    def metrics(self):
        got = subprocess.run(["curl", "-sS", f"http://127.0.0.1:{self.door}/metrics"], capture_output=True, timeout=10, check=True)
        return got.stdout

    def finish(self):
        """Stops what reports, then the agent, keeps the last metrics page, and returns the recording."""
        time.sleep(3.5)  # the engine's counters are read once a second, and cells wait two seconds for what is late
        (self.folder / "metrics.txt").write_bytes(self.metrics())
        for p in (*self.proxies, self.agent):
            if code := p.stop():
                raise RuntimeError(f"{p.name} ended with {code}: {p.log.read_text()[-2000:]}")
        return recording.Recording(self.given.tpotscope, self.state / "recordings" / "agent")

    def documents(self, run):
        """Yields everything that tpotscope kept, printed or sent."""
        yield from recording.documents(self.folder)
        yield "export jsonl", run.export()
        yield "export csv", run.export("csv")
        yield "report", run.run("report", str(run.folder), "-v")
        yield "report --json", run.run("report", str(run.folder), "--json")
        for i, (path, body) in enumerate(self.otlp.bodies):
            yield f"OTLP {path} {i}", body


class Tap:
    """The packet capture: a process of its own, so that nothing else of these checks delays it."""

    def __init__(self, stack, folder, port):
        self.path = pathlib.Path(folder, "packets.pcap")
        argv = [sys.executable, str(HERE / "capture.py"), str(port)]
        if os.geteuid() != 0:
            argv = ["sudo", "-n", *argv]  # a packet socket needs CAP_NET_RAW
        with open(self.path, "wb") as out:
            self.process = lab.Process("capture", argv, folder, subprocess.PIPE, out)
        stack.callback(self.process.stop)
        self.process.ready("ready")

    def stop(self):
        """Ends the capture and returns how many packets it took and lost."""
        self.process.stop()
        return map(int, self.process.log.read_text().split()[-2:])

    def events(self):
        """Returns when the packets came (Unix time, ns) that completed each text-bearing event, and the one that tells why the
        stream ends, both by request id."""
        out, ends = {}, {}
        for asked, answered in capture.read(self.path):
            for q, m in zip(http1.messages(bytes(asked.raw)), http1.messages(bytes(answered.raw))):
                if "event-stream" in m.header("content-type"):
                    request_id, times = q.header("x-request-id"), [(answered.time(m.place(e.end)), e) for e in http1.events(m.body)]
                    out[request_id] = [at for at, e in times if e.text]
                    ends[request_id] = next((at for at, e in times if any(c.get("finish_reason") for c in e.json["choices"])), 0)
        return out, ends
