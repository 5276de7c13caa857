"""What tpotscope left behind: recordings as Arrow tables, exported rows, reports, and the spans it sent."""

import bisect
import json
import pathlib
import subprocess

import pyarrow as pa
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

import lab

WAYS = ("token_ids", "usage", "logprobs", "final_usage")  # sources of a count that are the engine's own word


class Recording:
    """One recording, read with Arrow's own reader and through tpotscope's commands."""

    def __init__(self, tpotscope, folder):
        self.tpotscope, self.folder = tpotscope, pathlib.Path(folder)

    def run(self, *argv):
        done = subprocess.run([self.tpotscope, *argv], capture_output=True, timeout=120, env=lab.clean_environment())
        if done.returncode not in (0, 3):  # 3: not enough evidence to say what bounded decode, as without a GPU
            raise RuntimeError(f"tpotscope {argv[0]}: exit {done.returncode}: {done.stderr.decode()}")
        return done.stdout

    def export(self, form="jsonl"):
        return self.run("export", str(self.folder), "--format", form)

    def rows(self):
        """The exported rows by request id."""
        return {row["id"]: row for row in map(json.loads, self.export().splitlines())}

    def report(self):
        return json.loads(self.run("report", str(self.folder), "--json"))

    def tables(self):
        """Yields (file, table) of every Arrow stream."""
        for path in sorted(self.folder.rglob("*.arrows")):
            with pa.OSFile(str(path)) as f, pa.ipc.open_stream(f) as reader:
                yield path, reader.read_all()

    def of(self, kind):
        """The rows of one kind of file."""
        return [row for path, table in self.tables() if path.name.startswith(kind + "-") for row in table.to_pylist()]

    def tokens(self):
        """The token events of each request, by request id, each with its Unix time in nanoseconds."""
        anchors = sorted((a["monotonic_ns"], a["realtime_ns"]) for a in self.of("anchors"))
        stamps = self.stamps()
        ids = {r["ref"]: r["id"] for r in self.of("requests")}
        out = {}
        for t in self.of("tokens"):
            mono, real = anchors[max(0, bisect.bisect_right(anchors, (t["at_ns"], 0)) - 1)]
            t["unix_ns"], t["stamp"] = t["at_ns"] - mono + real, stamps[t["stamp"]]
            out.setdefault(ids.get(t["ref"]), []).append(t)
        for events in out.values():
            events.sort(key=lambda t: t["at_ns"])
        return out

    def stamps(self):
        """The names of the stamp column's codes, which the column carries."""
        for path, table in self.tables():
            if path.name.startswith("tokens-"):
                metadata = table.schema.field("stamp").metadata
                return next(iter(metadata.values())).decode().split(",")
        return []


def spans(bodies):
    """The spans in OTLP trace bodies."""
    for path, body in bodies:
        if path.endswith("/traces"):
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    yield from scope.spans


def documents(folder):
    """Yields (name, bytes) of everything below folder: each file as it is, and Arrow streams unpacked as well."""
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file():
            yield str(path), path.read_bytes()
    for path, table in Recording(None, folder).tables():
        text = json.dumps([table.to_pylist(), str(table.schema), str(table.schema.metadata)], default=str, ensure_ascii=False)
        yield f"{path} (unpacked)", text.encode()


def found(needles, docs):
    """Yields (document, needle) for each needle in each document, as it is and as JSON spells it."""
    spelt = {n: {n.encode(), json.dumps(n)[1:-1].encode()} for n in needles}
    for name, body in docs:
        for needle, forms in spelt.items():
            if any(form in body for form in forms):
                yield name, needle
