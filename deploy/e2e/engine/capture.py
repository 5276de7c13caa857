"""Packets of one TCP port on the loopback interface, with the kernel's receive times.

As a program it writes them to standard output as a pcap file (nanosecond form) until standard input closes; it needs CAP_NET_RAW.
As a module it reads such a file back into the directions of each connection.
"""

import bisect
import ctypes
import dataclasses
import select
import socket
import struct
import sys

# Numbers of the Linux interface that the socket module does not name (packet(7), socket(7), asm-generic/socket.h).
SO_ATTACH_FILTER, SO_RCVBUFFORCE, SO_TIMESTAMPNS = 26, 33, 35
SOL_PACKET, PACKET_STATISTICS = 263, 6
SNAP = 70_000  # loopback packets reach 64 KiB
PCAP_NS, ETHERNET = 0xA1B23C4D, 1


def port_filter(port):
    """A classic BPF program that keeps IPv4 TCP of port, either side."""
    program = [
        (0x28, 0, 0, 12), (0x15, 0, 8, 0x0800),  # EtherType is IPv4
        (0x30, 0, 0, 23), (0x15, 0, 6, 6),  # protocol is TCP
        (0xB1, 0, 0, 14),  # x = length of the IP header
        (0x48, 0, 0, 14), (0x15, 2, 0, port),  # source port
        (0x48, 0, 0, 16), (0x15, 0, 1, port),  # destination port
        (0x06, 0, 0, SNAP), (0x06, 0, 0, 0),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    return code, struct.pack("HL", len(program), ctypes.addressof(code))


def record(port, out):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    code, attach = port_filter(port)
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, attach)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.bind(("lo", 0x0800))  # IPv4 as received; what is sent there is received there
    sock.setblocking(False)
    out.write(struct.pack("<IHHiIII", PCAP_NS, 2, 4, 0, 0, SNAP, ETHERNET))
    print("ready", file=sys.stderr, flush=True)
    packets, open_ended = 0, True
    while True:
        ready, _, _ = select.select([sock] + [sys.stdin] * open_ended, [], [], 0.2)
        if sys.stdin in ready:
            open_ended = False  # what has come is still read
        if sock not in ready:
            if not open_ended:
                break
            continue
        frame, control, _, address = sock.recvmsg(SNAP, 128)
        if address[2] == socket.PACKET_OUTGOING:
            continue  # seen again when it is received
        stamps = [struct.unpack("qq", data) for _, kind, data in control if kind == SO_TIMESTAMPNS]
        if not stamps:
            continue
        out.write(struct.pack("<IIII", *stamps[0], len(frame), len(frame)) + frame)
        packets += 1
    _, dropped = struct.unpack("II", sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    out.flush()
    print(packets, dropped, file=sys.stderr, flush=True)
    del code


@dataclasses.dataclass
class Flow:
    """One direction of a connection: its bytes, and when the packet that carried each came (Unix time, ns)."""

    source: int
    target: int
    raw: bytearray = dataclasses.field(default_factory=bytearray)
    starts: list = dataclasses.field(default_factory=list)
    times: list = dataclasses.field(default_factory=list)
    next: int = 0  # sequence number

    def time(self, place):
        return self.times[bisect.bisect_right(self.starts, place) - 1]

    def add(self, sequence, payload, at):
        """Takes a segment. The loopback interface keeps the order; what was sent again is left out."""
        skip = (self.next - sequence) & 0xFFFFFFFF
        if skip >= 1 << 31:
            raise ValueError("a segment is missing from the capture")
        payload = payload[skip:]
        if payload:
            self.starts.append(len(self.raw))
            self.times.append(at)
            self.raw += payload
            self.next = (self.next + len(payload)) & 0xFFFFFFFF


def read(path):
    """Returns the pairs of directions (to the port, from the port) of all connections, as (client to server, server to client)."""
    with open(path, "rb") as f:
        raw = f.read()
    at, flows, pairs = 24, {}, []
    while at < len(raw):
        sec, nsec, size, _ = struct.unpack_from("<IIII", raw, at)
        frame = raw[at + 16 : at + 16 + size]
        at += 16 + size
        ip = 14
        tcp = ip + (frame[ip] & 15) * 4
        end = ip + struct.unpack_from(">H", frame, ip + 2)[0]
        source, target, sequence = struct.unpack_from(">HHI", frame, tcp)
        flags, payload = frame[tcp + 13], frame[tcp + (frame[tcp + 12] >> 4) * 4 : end]
        if flags & 2:  # SYN
            flow = flows[source, target] = Flow(source, target, next=(sequence + 1) & 0xFFFFFFFF)
            if flags & 16:  # and ACK: the server's
                pairs.append((flows[target, source], flow))
            continue
        if payload and (source, target) in flows:
            flows[source, target].add(sequence, payload, sec * 10**9 + nsec)
    return pairs


if __name__ == "__main__":
    record(int(sys.argv[1]), sys.stdout.buffer)
