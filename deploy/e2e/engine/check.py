"""Holds tpotscope against a real engine (llama.cpp's HTTP server) and real clients (openai, curl, a raw socket).

Each check prints its numbers; the exit status says whether all held. Everything is on the loopback interface. README.md beside
this file says what each check is for.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import openai

import bench
import http1
import lab
import recording
import tee

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LIMIT_S = 330
STREAMS, ROUNDS, SHORT, LONG = 20, 2, 96, 200  # streams at once, how often, tokens of each; tokens of the one alone
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "trailer", "te", "upgrade", "proxy-connection"}

# What a client may say that must reach nothing that is kept or sent. Each is content of another kind.
CANARY = {
    "prompt": "heron-basalt-70311",
    "completion": "walrus-onyx-4242",
    "tool definition": "ibis-gneiss-61957",
    "tool arguments asked": "stork-schist-18264",
    "tool arguments answered": "otter-marble-93720",
    "error body": "zebra-quartz-7731",
    "query": "finch-granite-55108",
    "authorization": "lynx-dolomite-30486",
}


class Report:
    """Prints checks as they come and counts those that do not hold."""

    def __init__(self):
        self.failed = []

    def section(self, title):
        print(f"\n{title}", flush=True)

    def say(self, text):
        print(f"        {text}", flush=True)

    def check(self, holds, text):
        print(f"  {'ok  ' if holds else 'FAIL'}  {text}", flush=True)
        if not holds:
            self.failed.append(text)


def chat(content, tokens, **more):
    """A streaming chat request that yields that many tokens, whatever the model would say."""
    return {"model": "gemma", "messages": [{"role": "user", "content": content}], "max_tokens": tokens, "ignore_eos": True,
            "seed": 7, "stream": True, "stream_options": {"include_usage": True}, **more}


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def spread(values, unit="", scale=1.0):
    v = [x * scale for x in values]
    return (f"n {len(v)}, min {min(v):.3f}, p10 {percentile(v, 0.1):.3f}, p50 {statistics.median(v):.3f}, "
            f"p90 {percentile(v, 0.9):.3f}, p99 {percentile(v, 0.99):.3f}, max {max(v):.3f}{unit}")


class Asked:
    """What clients asked and what the engine told them of it, by request id."""

    def __init__(self):
        self.usage, self.timings, self.texts = {}, {}, []
        self.count = 0

    def id(self, kind):
        self.count += 1
        return f"e2e-{kind}-{self.count}"

    def told(self, request_id, chunks):
        text = "".join(map(http1.text_of, chunks))
        self.texts.append(text)
        for chunk in chunks:
            if chunk.get("usage"):
                self.usage[request_id] = chunk["usage"]["completion_tokens"]
            if chunk.get("timings"):
                self.timings[request_id] = chunk["timings"]
                self.usage.setdefault(request_id, chunk["timings"]["predicted_n"])
        return text

    def reply(self, request_id, message):
        """Takes a reply of either form."""
        if "event-stream" in message.header("content-type"):
            return self.told(request_id, [e.json for e in http1.events(message.body)])
        value = json.loads(message.body)
        return self.told(request_id, [value]) if "error" not in value else ""


def check_bytes(r, env, asked):
    r.section("1. What the client receives is what the engine sent")
    schema = {"type": "object", "properties": {"key": {"type": "string", "enum": [CANARY["completion"]]}}, "required": ["key"]}
    forced = {"ignore_eos": False, "temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "k", "strict": True, "schema": schema}}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": json.dumps({"key": CANARY["tool arguments asked"]})}}
    tool = {"type": "function", "function": {"name": "look", "description": CANARY["tool definition"], "parameters": {"type": "object", "properties": {}}}}
    told = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "none"}, {"role": "user", "content": "So?"}]
    plain = {"model": "gemma", "prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True}
    cases = [
        ("streaming chat", CHAT, chat(CANARY["prompt"], 40), 200, ()),
        ("streaming chat with a query", f"{CHAT}?key={CANARY['query']}", chat("Say hello.", 16), 200, [("Authorization", f"Bearer {CANARY['authorization']}")]),
        ("streaming chat, no usage asked", CHAT, {k: v for k, v in chat("Say hello.", 24).items() if k != "stream_options"}, 200, ()),
        ("streaming chat, forced text", CHAT, chat("Answer.", 60, **forced), 200, ()),
        ("streaming chat, timings with each token", CHAT, chat("Count.", 24, timings_per_token=True), 200, ()),
        ("streaming completions", COMPLETIONS, {**plain, "stream": True, "stream_options": {"include_usage": True}}, 200, ()),
        ("whole chat", CHAT, {**chat(CANARY["prompt"], 24), "stream": False, "stream_options": None}, 200, ()),
        ("whole completions", COMPLETIONS, plain, 200, ()),
        ("tools in the request", CHAT, chat("", 24, messages=told, tools=[tool]), 200, ()),
        ("tool call in the reply (canned)", CHAT, chat("Look.", 8), 200, [(tee.SCRIPTED, json.dumps({"key": CANARY["tool arguments answered"]}))]),
        ("gzip offered", CHAT, chat("Say hello.", 16), 200, [("Accept-Encoding", "gzip")]),
        ("an error that repeats the request", CHAT, chat("x", 8, response_format={"type": CANARY["error body"]}), 400, ()),
        ("no JSON at all", CHAT, ('{"' + CANARY["error body"] + '": nonsense').encode(), 400, ()),
    ]
    for kind, path, body, status, headers in cases:
        one_exchange(r, env, asked, kind, path, body, status, headers)
    check_curl(r, env, asked)
    check_asking(r, env, asked)
    served = "".join(asked.texts)
    for kind in ("completion", "tool arguments answered"):
        r.check(CANARY[kind] in served, f"the engine did say the {kind} that is looked for later")


def one_exchange(r, env, asked, kind, path, body, status, headers):
    """Sends one request through the proxy and holds both ends of the relay against each other."""
    request_id = asked.id("bytes")
    got = lab.post(env.relayed, path, body, [("X-Request-Id", request_id), *headers])
    asked.reply(request_id, got)
    seen, sent = env.tee.exchange(request_id)
    r.check(got.body == sent.body and got.whole and sent.whole and len(got.body) > 0, f"{kind}: {len(got.body)} of {len(sent.body)} bytes the same")
    if got.status != status or sent.status != status:
        r.check(False, f"{kind}: status {got.status}, the engine's {sent.status}, want {status}")
    if end_to_end(got) != end_to_end(sent):
        r.check(False, f"{kind}: headers {sorted(end_to_end(got) ^ end_to_end(sent))} differ")
    if seen.body != (body if isinstance(body, bytes) else json.dumps(body).encode()) or seen.start.split(" ")[1] != path:
        r.check(False, f"{kind}: the engine was asked something else")
    want = dict(headers).get("Accept-Encoding", "")
    if seen.header("accept-encoding") != want:
        r.check(False, f"{kind}: the engine was offered {seen.header('accept-encoding')!r}, the client offered {want!r}")


def end_to_end(message):
    return {(n.lower(), v) for n, v in message.headers if n.lower() not in HOP_BY_HOP}


def check_curl(r, env, asked):
    """curl undoes the chunks by itself, so that no parser of these checks stands between the two bodies."""
    request_id = asked.id("curl")
    argv = ["curl", "-sSN", "--max-time", "60", f"http://127.0.0.1:{env.relayed}{CHAT}", "-H", "Content-Type: application/json", "-H", f"X-Request-Id: {request_id}", "-d", json.dumps(chat("Say hello.", 24))]
    got = subprocess.run(argv, capture_output=True, timeout=90, check=True).stdout
    _, sent = env.tee.exchange(request_id)
    asked.reply(request_id, sent)
    r.check(got == sent.body and got.endswith(b"data: [DONE]\n\n"), f"streaming chat by curl: {len(got)} of {len(sent.body)} bytes the same")


def check_asking(r, env, asked):
    """A proxy told to ask for the final usage: the client sees the same stream without the event that it did not ask for."""
    request_id = asked.id("asking")
    body = {k: v for k, v in chat("Say hello.", 24).items() if k != "stream_options"}
    got = lab.post(env.asking, CHAT, body, [("X-Request-Id", request_id)])
    seen, sent = env.tee.exchange(request_id)
    asked.reply(request_id, sent)
    blocks = sent.body.split(b"\n\n")
    extra = [b for b in blocks if b"\"usage\":{" in b]
    rest = b"\n\n".join(b for b in blocks if b not in extra)
    r.check(b"include_usage" in seen.body and len(extra) == 1 and got.body == rest, f"--inject-usage: the engine is asked, {len(got.body)} bytes are the {len(sent.body)} sent less the usage event")


def send_traces(env, asked):
    """Sends requests with a sampled and an unsampled parent. Returns (request id, trace, parent, sampled) of each."""
    sent = []
    for flags in ("01", "00"):
        request_id, trace, parent = asked.id("trace"), os.urandom(16).hex(), os.urandom(8).hex()
        headers = [("X-Request-Id", request_id), ("traceparent", f"00-{trace}-{parent}-{flags}"), ("tracestate", "vendor=1")]
        asked.reply(request_id, lab.post(env.relayed, CHAT, chat("Say hello.", 12), headers))
        sent.append((request_id, trace, parent, flags == "01"))
    return sent


def check_traces(r, env, sent):
    r.section("6b. Traces: the exported span is the engine's parent")
    spans = {}
    for s in recording.spans(env.otlp.bodies):
        spans.setdefault(s.trace_id.hex(), []).append(s)
    for request_id, trace, parent, sampled in sent:
        seen, _ = env.tee.exchange(request_id)
        version, to_trace, to_parent, flags = seen.header("traceparent").split("-")
        r.check((version, to_trace, flags) == ("00", trace, "01" if sampled else "00") and to_parent != parent and seen.header("tracestate") == "vendor=1",
                f"{'sampled' if sampled else 'unsampled'} parent: its trace, flags and state reach the engine, under a parent of their own")
        of_trace = spans.get(trace, [])
        if not sampled:
            r.check(not of_trace, f"unsampled parent: {len(of_trace)} spans exported")
            continue
        r.check([(s.span_id.hex(), s.parent_span_id.hex()) for s in of_trace] == [(to_parent, parent)],
                f"sampled parent: {len(of_trace)} span with that trace, its id is the parent that the engine was told, its parent the client's")
    r.say(f"{sum(map(len, spans.values()))} spans in {len(env.otlp.bodies)} OTLP requests")


def check_counts(r, env, asked, rows):
    r.section("2. Token counts are the engine's")
    missing = [i for i in asked.usage if i not in rows]
    wrong = {i: (rows[i]["output_tokens"], n) for i, n in asked.usage.items() if i in rows and rows[i]["output_tokens"] != n}
    relayed = {q.header("x-request-id") for q, _ in env.tee.exchanges()}
    weak = {i: rows[i]["count_source"] for i in asked.usage if i in rows and rows[i]["count_source"] not in recording.WAYS}
    by = {}
    for i in asked.usage:
        if i in rows:
            by[rows[i]["count_source"]] = by.get(rows[i]["count_source"], 0) + 1
    r.check(not missing, f"{len(asked.usage)} requests with a count by the engine, {len(missing)} not recorded {missing[:5]}; "
            f"{len(relayed & set(asked.usage))} of them by proxies that report over the agent's socket, the rest by the proxy in the agent")
    r.check(not wrong, f"{sum(asked.usage.values())} tokens, {len(wrong)} requests with another count than the engine's {list(wrong.items())[:5]}")
    r.check(not weak, f"sources of the counts: {by}")
    wrong = [i for i, t in asked.timings.items() if i in rows and (rows[i]["engine_output_tokens"] != t["predicted_n"] or abs(rows[i]["engine_output_s"] * 1e3 - t["predicted_ms"]) > 1e-3)]
    r.check(not wrong, f"the engine's own timings of {len(asked.timings)} requests, {len(wrong)} not as told {wrong[:5]}")
    short = [(rows[i]["events"], n) for i, n in asked.usage.items() if i in rows and rows[i]["streaming"] and 0 < rows[i]["events"] < n]
    r.say(f"streams with fewer events than tokens: {len(short)} (events, tokens): {short[:8]}")


def ask_long(env, asked):
    request_id = asked.id("long")
    asked.reply(request_id, lab.post(env.direct, CHAT, chat("Tell a long story.", LONG), [("X-Request-Id", request_id)]))
    return request_id


def divisor(timings):
    """What predicted_per_token_ms divides predicted_ms by: 0 for all tokens, 1 for all but the first, None for neither."""
    n, ms, per = timings["predicted_n"], timings["predicted_ms"], timings["predicted_per_token_ms"]
    return next((less for less in (1, 0) if n > less and abs(per * (n - less) - ms) < 1e-6 * ms), None)


def check_long(r, asked, rows, request_id, packets, ends):
    r.section("3. One stream alone: TPOT against the engine's own timings")
    by = [divisor(t) for t in asked.timings.values() if t["predicted_n"] > 1]
    r.check(len(set(by)) == 1 and by[0] is not None,
            f"predicted_per_token_ms = predicted_ms / (predicted_n - {by[0]}) in {by.count(by[0])} of {len(by)} replies")
    t, row = asked.timings[request_id], rows[request_id]
    # With n - 1, predicted_ms begins with the first token and covers the same n - 1 steps as TPOT does. With n, as older builds
    # have it, it begins with the end of the prompt, and the first token is a step of its own. Both are the mean of a step.
    engine, ours = t["predicted_per_token_ms"], row["tpot_s"] * 1e3
    r.check(row["output_tokens"] == t["predicted_n"] == LONG and abs(ours / engine - 1) <= 0.01,
            f"{row['output_tokens']} tokens: tpotscope {ours:.4f} ms, the engine {engine:.4f} ms, {100 * (ours / engine - 1):+.3f} % (bar 1 %)")
    ended = {i: asked.timings[i]["predicted_per_token_ms"] for i, x in rows.items()
             if i in asked.timings and x["streaming"] and x["finish"] == "stop" and x["events"] > 8}
    for i, engine in ended.items():
        # The engine counts the token that ends the text, which no text event bears: it comes with the finish.
        ours, x = rows[i]["tpot_s"] * 1e3, rows[i]
        with_end = (ends[i] - packets[i][0]) / 1e6 / (x["output_tokens"] - 1)
        r.check(abs(ours / engine - 1) <= 0.01,
                f"a text that ended by itself, {x['output_tokens']} tokens in {x['events']} events: tpotscope {ours:.4f} ms, the engine {engine:.4f} ms, "
                f"{100 * (ours / engine - 1):+.3f} % (bar 1 %); up to the event with the finish reason {with_end:.4f} ms, {100 * (with_end / engine - 1):+.3f} %")


async def stream(client, request_id):
    """Streams one request with the official client. Returns what its own clock says."""
    first = last = tokens = 0
    chunks = []
    reply = await client.chat.completions.create(
        model="gemma", messages=[{"role": "user", "content": f"Tell story {request_id}."}], max_tokens=SHORT, stream=True, seed=7,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True}, extra_headers={"X-Request-Id": request_id})
    async for chunk in reply:
        now = time.perf_counter_ns()
        if chunk.choices and chunk.choices[0].delta.content:
            first, last = first or now, now
        if chunk.usage:
            tokens = chunk.usage.completion_tokens
        chunks.append(chunk.model_dump())
    return request_id, (last - first) / 1e9 / (tokens - 1), chunks


def ask_many(env, asked):
    """Runs STREAMS streams at once, ROUNDS times. Returns the client's TPOT by request id."""

    async def run():
        got = {}
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{env.direct}/v1", api_key="none", max_retries=0, timeout=120) as client:
            for _ in range(ROUNDS):
                for request_id, tpot, chunks in await asyncio.gather(*(stream(client, asked.id("openai")) for _ in range(STREAMS))):
                    got[request_id] = tpot
                    asked.told(request_id, chunks)
        return got

    return asyncio.run(run())


def check_many(r, asked, rows, clients, packets):
    r.section(f"4. {STREAMS} streams at once with the openai client, {ROUNDS} times")
    lost = [i for i in clients if i not in rows or rows[i]["status"] != "ok" or asked.usage.get(i) != SHORT]
    r.check(len(clients) == STREAMS * ROUNDS and not lost, f"{len(clients)} streams of {SHORT} tokens, {len(lost)} lost {lost[:5]}")
    both = {i: (rows[i]["tpot_s"], t) for i, t in clients.items() if i in rows and isinstance(rows[i]["tpot_s"], float)}
    ours, theirs = statistics.median(a for a, _ in both.values()), statistics.median(b for _, b in both.values())
    r.check(abs(ours - theirs) <= max(0.01 * theirs, 0.5e-3),
            f"median TPOT: tpotscope {ours * 1e3:.4f} ms, client {theirs * 1e3:.4f} ms, {(ours - theirs) * 1e3:+.4f} ms, {100 * (ours / theirs - 1):+.3f} % (bar 1 % or 0.5 ms)")
    r.say("TPOT, tpotscope:          " + spread([a for a, _ in both.values()], " ms", 1e3))
    r.say("TPOT, client:             " + spread([b for _, b in both.values()], " ms", 1e3))
    r.say("tpotscope/client - 1:     " + spread([a / b - 1 for a, b in both.values()], " %", 100))
    wire = {i: tpot_of(packets[i]) for i in both if len(packets.get(i, [])) > 1}
    r.say("tpotscope/packets - 1:    " + spread([both[i][0] / w - 1 for i, w in wire.items()], " %", 100))
    far = [i for i, (a, b) in both.items() if abs(a / b - 1) > 0.05]
    r.say(f"further than 5 % from the client: {len(far)}")
    for i in far:
        a, b = both[i]
        r.say(f"  {i}: tpotscope {a * 1e3:.3f} ms, client {b * 1e3:.3f} ms, packets {wire.get(i, float('nan')) * 1e3:.3f} ms")


def tpot_of(times):
    return (times[-1] - times[0]) / 1e9 / (SHORT - 1)


def check_stamps(r, run, rows, packets, taken, lost, through):
    r.section("5. Stamps against a packet capture")
    r.check(taken > 0 and lost == 0, f"{taken} packets captured, {lost} lost by the capture")
    tokens = run.tokens()
    seen = [i for i in through if rows[i]["events"]]
    events, kernel = sum(rows[i]["events"] for i in seen), sum(rows[i]["kernel_stamped"] for i in seen)
    r.check(kernel >= 0.99 * events, f"{kernel} of {events} events kernel-stamped, {100 * kernel / events:.3f} % (bar 99 %); {sum(rows[i]['coalesced'] for i in seen)} shared a read")
    unequal = [i for i in seen if len(tokens.get(i, [])) != len(packets.get(i, []))]
    r.check(not unequal, f"{len(seen)} streams, {len(unequal)} with another number of events than the packets carry {unequal[:5]}")
    pairs = [(t, p) for i in seen if i not in unequal for t, p in zip(tokens[i], packets[i])]
    apart = [(t["unix_ns"] - p) / 1e3 for t, p in pairs]
    own = [d for d, (t, _) in zip(apart, pairs) if t["bracket_ns"] == 0]
    shared = [(d, t["bracket_ns"] / 1e3) for d, (t, _) in zip(apart, pairs) if t["bracket_ns"]]
    off = [abs(d) for d in apart]
    p99 = percentile(off, 0.99)
    r.say("stamp - packet, all events:            " + spread(apart, " us"))
    r.say("stamp - packet, stamps of their own:   " + spread(own, " us"))
    if shared:
        # Their read ended with another event, mostly the one that tells why the stream ends: the stamp is an upper bound.
        r.say("stamp - packet, stamps of a later one: " + spread([d for d, _ in shared], " us"))
    outside = [(d, width) for d, width in shared if not -100 <= d <= width + 100]
    r.check(not outside, f"{len(shared)} events that share the stamp of a later one came within the bracket that is recorded, but for {len(outside)}")
    r.check(p99 <= 1000, f"distance p50 {statistics.median(off):.3f} us, p99 {p99:.3f} us" + ("" if p99 <= 50 else ": beyond the bar of 50 us"))
    if p99 > 50:
        r.say(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; of stamps of their own p99 is {percentile([abs(d) for d in own], 0.99):.3f} us")


def check_report(r, run, asked):
    r.section("7. The engine's own counters in the report")
    report = run.report()
    coverage = report["traffic_coverage"]
    r.say(f"evidence {report['evidence']}, traffic coverage {coverage}, requests {report['requests']}, tokens {report['tokens']}")
    # The engine counts a request's tokens when it ends, and canned replies never. The probe places tokens in time by their
    # events, so that those of whole replies count for nothing here: they are 1 % of these.
    r.check(isinstance(coverage, float) and 0.95 <= coverage <= 1.05, f"traffic coverage {coverage:.4f} (bar 0.95 to 1.05)")
    r.check(report["evidence"] == "L3", f"evidence level {report['evidence']}: the engine's metrics, and a probe in the path")
    totals = [s["output_tokens_total"] for s in run.of("engine") if s["output_tokens_total"] is not None]
    grown = totals[-1] - totals[0] if totals else 0
    told = sum(n for i, n in asked.usage.items() if i in asked.timings)
    r.check(len(totals) > 10 and grown == told, f"{len(totals)} readings of the engine's counters: output grew by {grown:.0f}, its clients were told {told}")
    steps = [s["steps_total"] for s in run.of("engine") if s["steps_total"] is not None]
    r.say(f"decode steps by the engine's count: {steps[-1] - steps[0]:.0f}, {grown / max(1, steps[-1] - steps[0]):.2f} tokens a step")


def needles(asked):
    """The canaries, and pieces of what the model happened to say that are long enough to be nothing else."""
    out = set(CANARY.values())
    for text in asked.texts:
        for at in range(0, max(0, len(text) - 16), 8):
            piece = text[at : at + 16]
            if sum(c.isalpha() for c in piece) >= 10:
                out.add(piece)
    return sorted(out)


def check_content(r, env, run, asked, planted):
    r.section("6. No content is kept, printed or sent")
    words = needles(asked)
    docs = list(env.documents(run))
    hits = list(recording.found(words, docs))
    r.check(not hits, f"{len(words)} pieces of content ({len(CANARY)} planted) in {len(docs)} documents of {sum(len(b) for _, b in docs)} bytes: {len(hits)} found {hits[:5]}")
    kinds = {"Arrow": ".arrows (unpacked)", "log": ".log", "metrics": "metrics.txt", "OTLP traces": "OTLP /v1/traces", "OTLP metrics": "OTLP /v1/metrics"}
    absent = [k for k, part in kinds.items() if not any(part in name and body for name, body in docs)]
    r.check(not absent, f"the search saw every kind of document {absent or ''}")
    found = {n for _, n in recording.found(words, plant(planted, words))}
    r.check(found == set(words), f"the same search finds {len(found)} of {len(words)} pieces where they were planted, in a packed Arrow stream")
    leaked = [i for i in asked.usage if not any(i.encode() in body for _, body in docs)]
    r.check(not leaked, f"the same search finds all but {len(leaked)} request ids, which are kept by design")


def plant(folder, words):
    """Writes the words as tpotscope would have kept them, and yields the documents of it without the raw file."""
    import pyarrow as pa

    folder.mkdir()
    table = pa.table({"detail": words})
    with pa.OSFile(str(folder / "events-000001.arrows"), "wb") as f:
        with pa.ipc.new_stream(f, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as w:
            w.write_table(table)
    yield from ((n, b) for n, b in recording.documents(folder) if n.endswith("(unpacked)"))


def measured(r, given, folder):
    """Checks 1 to 7: one agent, one engine, all of them well."""
    asked = Asked()
    with contextlib.ExitStack() as stack:
        env = bench.Bench(given, folder, stack, "measured", relayed=True)
        tap = bench.Tap(stack, folder, env.engine_port)
        time.sleep(2.5)  # the first readings of the engine's counters come before the first request
        check_bytes(r, env, asked)
        traces = send_traces(env, asked)
        long = ask_long(env, asked)
        clients = ask_many(env, asked)
        run = env.finish()
        taken, lost = tap.stop()
        (packets, ends), rows = tap.events(), run.rows()
        check_counts(r, env, asked, rows)
        check_long(r, asked, rows, long, packets, ends)
        check_many(r, asked, rows, clients, packets)
        check_stamps(r, run, rows, packets, taken, lost, [long, *clients])
        check_content(r, env, run, asked, pathlib.Path(folder, "planted"))
        check_traces(r, env, traces)
        check_report(r, run, asked)
        for p in env.proxies:
            r.say(f"{p.name}: {p.log.read_text().strip().splitlines()[-1]}")


def three_events(raw):
    return raw.count(b"data: ") > 3


def faults(r, given, folder):
    """Check 8: a client that leaves, an engine that dies, an engine that is down."""
    r.section("8. Ends that are no good ends")
    with contextlib.ExitStack() as stack:
        env = bench.Bench(given, folder, stack, "faults", relayed=False)
        s = lab.send(env.direct, CHAT, chat("Tell a story.", 400), [("X-Request-Id", "e2e-left")]).read(three_events)
        s.sock.close()
        engine = ["curl", "-sS", "--max-time", "5", f"http://127.0.0.1:{env.engine_port}/metrics"]
        lab.wait_for("the engine to be idle", lambda: b"llamacpp:requests_processing 0" in subprocess.run(engine, capture_output=True, timeout=10).stdout)
        r.check(True, f"a client that leaves after {bytes(s.raw).count(b'data: ')} events: the engine is told, and idle again")

        out = env.folder.parent / "cut.txt"
        with open(out, "wb") as f:
            argv = ["curl", "-sN", "--max-time", "60", f"http://127.0.0.1:{env.direct}{CHAT}", "-H", "X-Request-Id: e2e-killed", "-d", json.dumps(chat("Tell a story.", 400))]
            curl = subprocess.Popen(argv, stdout=f)
        stack.callback(lambda: curl.poll() is None and curl.kill())
        lab.wait_for("the stream to begin", lambda: three_events(out.read_bytes()))
        env.engine.kill()
        code = curl.wait(30)
        r.check(code not in (0, 28) and b"[DONE]" not in out.read_bytes(), f"an engine killed in mid-stream: curl sees the cut (exit {code}, 18 is a partial transfer)")

        down = lab.post(env.direct, CHAT, chat("Hello?", 8), [("X-Request-Id", "e2e-down")])
        r.check(down.status == 502, f"an engine that is down: {down.status}")
        rows = env.finish().rows()
    want = {"e2e-left": ("cancelled",), "e2e-killed": ("truncated", "upstream_error"), "e2e-down": ("upstream_error",)}
    for request_id, statuses in want.items():
        got = rows.get(request_id, {}).get("status", "not recorded")
        r.check(got in statuses, f"{request_id}: recorded as {got}")


def out_of_time(*_):
    raise TimeoutError(f"the checks take longer than {LIMIT_S} s")


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--tpotscope", required=True)
    args.add_argument("--model", required=True)
    args.add_argument("--keep", action="store_true", help="keep the working folder, which holds content")
    given = args.parse_args()
    began, r = time.monotonic(), Report()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(LIMIT_S)
    folder = tempfile.mkdtemp(prefix="tpotscope-e2e-")
    try:
        measured(r, given, folder)
        faults(r, given, folder)
    finally:
        if given.keep:
            print("kept", folder)
        else:
            shutil.rmtree(folder)
    print(f"\n{len(r.failed)} checks failed, {time.monotonic() - began:.0f} s")
    for text in r.failed:
        print(f"  FAIL  {text}")
    sys.exit(bool(r.failed))


if __name__ == "__main__":
    main()
