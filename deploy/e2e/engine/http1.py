"""HTTP/1.1 messages and server-sent events out of one direction of a connection's bytes, each with its place there.

Written for these checks alone, so that a misreading in tpotscope's own parsers shows.
"""

import bisect
import dataclasses
import json


@dataclasses.dataclass
class Message:
    """One request or reply. pieces maps the body back to the connection: (offset in body, offset in connection)."""

    start: str
    headers: list
    body: bytes
    pieces: list
    whole: bool

    def header(self, name):
        return next((v for n, v in self.headers if n.lower() == name), "")

    @property
    def status(self):
        return int(self.start.split(" ")[1])

    def place(self, offset):
        """Where in the connection the body's byte at offset lies."""
        at, place = self.pieces[bisect.bisect_right(self.pieces, (offset, float("inf"))) - 1]
        return place + offset - at


def messages(raw):
    """Parses all messages of one direction. The last one may be cut, and says so."""
    out, at = [], 0
    while at < len(raw):
        head_end = raw.find(b"\r\n\r\n", at)
        if head_end < 0:
            break
        lines = raw[at:head_end].decode("latin-1").split("\r\n")
        headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:]]
        m = Message(lines[0], headers, b"", [], True)
        at = head_end + 4
        if m.header("transfer-encoding").lower() == "chunked":
            at = chunked(raw, at, m)
        elif m.header("content-length"):
            size = int(m.header("content-length"))
            m.body, m.pieces = raw[at : at + size], [(0, at)]
            m.whole = len(m.body) == size
            at += size
        elif lines[0].startswith("HTTP/") and m.status not in (204, 304):
            m.body, m.pieces, at = raw[at:], [(0, at)], len(raw)
        out.append(m)
    return out


def chunked(raw, at, m):
    """Reads a chunked body (RFC 9112, section 7.1) into m and returns where it ends."""
    parts, length = [], 0
    m.whole = False
    while True:
        line_end = raw.find(b"\r\n", at)
        if line_end < 0:
            at = len(raw)
            break
        size = int(raw[at:line_end].split(b";")[0], 16)
        at = line_end + 2
        if size == 0:
            end = raw.find(b"\r\n", at)
            m.whole = end >= 0
            at = end + 2 if end >= 0 else len(raw)
            break
        part = raw[at : at + size]
        m.pieces.append((length, at))
        parts.append(part)
        length += len(part)
        if len(part) < size:
            at = len(raw)
            break
        at += size + 2
    m.body = b"".join(parts)
    return at


@dataclasses.dataclass
class Event:
    """One server-sent event: its JSON, the text it bore, and the body offset of its last byte."""

    json: dict
    text: str
    end: int


def events(body):
    """Yields the events of a body, [DONE] left out."""
    at = 0
    while (end := body.find(b"\n\n", at)) >= 0:
        lines = body[at:end].split(b"\n")
        data = b"\n".join(line[5:].lstrip() for line in lines if line.startswith(b"data:"))
        if data and data != b"[DONE]":
            value = json.loads(data)
            yield Event(value, text_of(value), end + 1)
        at = end + 2


def text_of(chunk):
    """The text that a chunk or a whole reply of the OpenAI dialects carries."""
    text = ""
    for choice in chunk.get("choices", []):
        part = choice.get("delta") or choice.get("message") or {}
        text += (part.get("content") or "") + (choice.get("text") or "")
        for call in part.get("tool_calls") or []:
            text += call.get("function", {}).get("arguments") or ""
    return text
