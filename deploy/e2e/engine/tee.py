"""A recording relay in front of the engine."""

import asyncio
import contextlib
import json
import threading

import http1
import lab

# What a canned reply of the relay looks like: the engine's own framing around a tool call.
SCRIPTED = "X-Scripted-Tool-Arguments"


class Tee:
    """A TCP relay in front of the engine that keeps what each side sent. A request with the header SCRIPTED is answered by the
    relay itself, with a tool call that has the header's value as its arguments: a base model cannot be made to call tools."""

    def __init__(self, port, upstream):
        self.port, self.upstream, self.connections = port, upstream, []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        lab.wait_for("the recording relay", lambda: lab.connects(port))

    def serve(self):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self.accept, "127.0.0.1", self.port))
        self.loop.run_forever()

    async def accept(self, reader, writer):
        sent, answered = bytearray(), bytearray()
        self.connections.append((sent, answered))
        up_writer, back = None, None
        try:
            while data := await reader.read(65536):
                sent += data
                last = http1.messages(bytes(sent))[-1:]
                if last and last[0].whole and last[0].header(SCRIPTED.lower()):
                    reply = scripted(last[0].header(SCRIPTED.lower()))
                    answered += reply
                    writer.write(reply)
                    continue
                if up_writer is None:
                    up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
                    back = asyncio.create_task(self.pump(up_reader, writer, answered))
                up_writer.write(data)
        except OSError:
            pass
        finally:
            for w in (up_writer, writer):
                if w:
                    w.close()
            if back:
                await asyncio.gather(back, return_exceptions=True)

    @staticmethod
    async def pump(reader, writer, kept):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                kept += data
                writer.write(data)
        writer.close()

    def exchanges(self):
        """Yields (request, reply) of everything that passed."""
        for sent, answered in self.connections:
            yield from zip(http1.messages(bytes(sent)), http1.messages(bytes(answered)))

    def exchange(self, request_id):
        return next((q, r) for q, r in self.exchanges() if q.header("x-request-id") == request_id)

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)


def scripted(arguments):
    def chunk(delta, finish=None, **more):
        return {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1, "model": "scripted",
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}

    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}
    chunks = [chunk({"role": "assistant", "content": None}), chunk({"tool_calls": [call]})]
    for part in (arguments[:7], arguments[7:]):
        chunks.append(chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}))
    usage = {"completion_tokens": 3, "prompt_tokens": 9, "total_tokens": 12}
    chunks += [chunk({}, "tool_calls"), {**chunk({}), "choices": [], "usage": usage}]
    datas = [json.dumps(c) for c in chunks] + ["[DONE]"]
    body = b"".join(b"%x\r\n%b\r\n" % (len(d) + 8, b"data: " + d.encode() + b"\n\n") for d in datas)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
