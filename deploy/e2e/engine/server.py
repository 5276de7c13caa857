"""llama.cpp's own HTTP server on a loopback port, until standard input closes.

The server is the one of llama.cpp (tools/server), compiled into the xllamacpp module; nothing of it runs in Python. It says
"ready" once it takes requests. Slots and context are what twenty short streams at once need.
"""

import argparse
import sys

import xllamacpp


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--model", required=True)
    args.add_argument("--port", type=int, required=True)
    args.add_argument("--slots", type=int, default=20)
    args.add_argument("--threads", type=int, default=2)
    given = args.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.hostnames = ["127.0.0.1"]
    params.port = given.port
    params.n_parallel = given.slots
    params.n_ctx = given.slots * 512
    params.cpuparams.n_threads = given.threads
    params.endpoint_metrics = True
    params.use_jinja = True  # tool calls
    server = xllamacpp.Server(params)
    print("ready", server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
