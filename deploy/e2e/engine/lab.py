"""What the checks stand on: ports, processes, an OTLP receiver, and a raw client."""

import dataclasses
import gzip
import http.server
import json
import os
import pathlib
import socket
import subprocess
import threading
import time

import http1


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, test, seconds=30.0):
    """Polls test until it gives something, and returns that."""
    end = time.monotonic() + seconds
    while not (got := test()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)
    return got


class Process:
    """A child with what it says in a file. It is ended by its own pid, and only by that: by closing its standard input where it
    has one of ours, else by a signal."""

    def __init__(self, name, argv, folder, stdin=subprocess.DEVNULL, out=None):
        self.name, self.log = name, pathlib.Path(folder, name + ".log")
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(argv, stdin=stdin, stdout=out or log, stderr=log, env=clean_environment())

    def said(self, text):
        if self.child.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.child.returncode}: {self.log.read_text(errors='replace')[-2000:]}")
        return text in self.log.read_text(errors="replace")

    def ready(self, text, seconds=60.0):
        wait_for(f"{self.name} to be ready", lambda: self.said(text), seconds)
        return self

    def stop(self, seconds=20.0):
        if self.child.poll() is None:
            if self.child.stdin:
                self.child.stdin.close()
            else:
                self.child.terminate()
            try:
                self.child.wait(seconds)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        return self.child.returncode

    def kill(self):
        self.child.kill()
        self.child.wait()


class Receiver:
    """An OTLP/HTTP receiver that keeps the bodies it is sent, decompressed."""

    def __init__(self):
        kept = self.bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                kept.append((self.path, body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@dataclasses.dataclass
class Stream:
    """A request that a raw client sent, and what has come back so far."""

    sock: socket.socket
    raw: bytearray = dataclasses.field(default_factory=bytearray)

    def read(self, until=lambda raw: False):
        """Reads until the reply ends or until says so."""
        while not until(self.raw) and (data := self.sock.recv(65536)):
            self.raw += data
        return self

    def reply(self):
        return http1.messages(bytes(self.raw))[0]


def send(port, path, body, headers=(), seconds=120):
    """Sends a request by hand, with no header beyond those it must have and the given ones."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json", f"Content-Length: {len(body)}",
             "Connection: close", *(f"{n}: {v}" for n, v in headers)]
    s = Stream(socket.create_connection(("127.0.0.1", port), seconds))
    s.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return s


def post(port, path, body, headers=()):
    s = send(port, path, body, headers).read()
    s.sock.close()
    return s.reply()


def clean_environment():
    """This process's environment without what would configure tpotscope or an exporter."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TPOTSCOPE_"))}
