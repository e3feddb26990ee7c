"""Watches the workers of a service from beside its gateway.

A Watch is one more gateway that never asks for anything: it says hello on a worker's socket (see
docs/protocol/engine.md) and reads the loads and handoff counts that come five times a second. So
what a worker counted is known up to a fifth of a second before it is killed, belongs to exactly
one process (the hello has its epoch), and is seen also while the gateway is dead.
"""
import os
import random
import re
import socket
import struct
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COUNTS = ("open blocks_held pulls_running released expired withdrawn pulls_done pulls_failed "
          "bytes_pulled slices_corrupt").split()


def fields(data):
    """(number, value) of a protobuf message; numbers as int, the rest as bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        elif kind == 1:
            yield key >> 3, int.from_bytes(data[at:at + 8], "little")
            at += 8
        elif kind == 5:
            yield key >> 3, data[at:at + 4]
            at += 4
        else:
            size = varint()
            yield key >> 3, data[at:at + size]
            at += size


def varints(data):
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


def protocol_version():
    """Of the control plane, as this tree's workers speak it."""
    with open(os.path.join(ROOT, "src/io/control/engine_codec.h")) as file:
        return int(re.search(r"kProtocolVersion = (\d+);", file.read())[1])


def handoff_edges():
    """[(name, is a fault)] in the order in which workers tell them."""
    with open(os.path.join(ROOT, "docs/protocol/handoff.md")) as file:
        table = file.read().split("<!-- edges -->")[1].split("<!-- /edges -->")[0]
    rows = re.findall(r"^\| `(\S+)` \| \w+ \| ?(fault)? ?\|$", table, re.M)
    assert len(rows) > 50, "the table of edges was not found"
    return [(name, fault == "fault") for name, fault in rows]


class Watch:
    """One worker's socket, whoever listens there."""

    def __init__(self, path, hits):
        self.path, self.hits = path, hits
        self.lock = threading.Lock()
        self.closing = False
        self.seen = None     # (when, load and counts) of the latest frame
        self.epoch = 0
        self.edges = []      # of the process with that epoch
        self.counts = {}     # its part in handoffs
        self.socket = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.closing:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as self.socket:
                    self.socket.settimeout(30)
                    self.socket.connect(self.path)
                    hello = b"\x09" + random.randbytes(8) + b"\x18" + bytes([protocol_version()])
                    frame = b"\x0a" + bytes([len(hello)]) + hello
                    self.socket.sendall(struct.pack("<I", len(frame)) + frame)
                    with self.socket.makefile("rb") as stream:
                        while not self.closing:
                            self._frame(stream)
            except (OSError, EOFError):
                pass
            self.seen = None
            time.sleep(0.05)

    def _frame(self, stream):
        head = stream.read(4)
        if len(head) < 4:
            raise EOFError
        data = stream.read(struct.unpack("<I", head)[0])
        load = {"running": 0, "waiting": 0, "kv_tokens_used": 0}
        told = False
        for number, value in fields(data):
            if number == 1:
                epoch = dict(fields(value))[1]
                with self.lock:
                    if epoch != self.epoch:
                        self.epoch, self.edges, self.counts = epoch, [], {}
            elif number == 4:
                told = True
                rank = dict(fields(value))
                for place, name in ((2, "running"), (3, "waiting"), (4, "kv_tokens_used")):
                    load[name] += rank.get(place, 0)
            elif number == 7:
                counts = dict.fromkeys(COUNTS, 0)
                for place, amount in fields(value):
                    if place == 11:
                        self._edges(list(varints(amount)))
                    else:
                        counts[COUNTS[place - 1]] = amount
                self.counts = counts
        if told:
            self.seen = (time.monotonic(), {**load, **self.counts})

    def _edges(self, edges):
        with self.lock:
            known = self.edges + [0] * (len(edges) - len(self.edges))
            self.hits.add([new - old for new, old in zip(edges, known)])
            self.edges = edges

    def load(self):
        """Of the last second; None when the worker is away or stopped."""
        seen = self.seen
        return seen[1] if seen and time.monotonic() - seen[0] < 1 else None

    def close(self):
        self.closing = True
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.thread.join()


class Hits:
    """How often each edge was taken, by all workers that ever lived."""

    def __init__(self):
        self.edges = handoff_edges()
        self.lock = threading.Lock()
        self.counts = [0] * len(self.edges)

    def add(self, fresh):
        assert len(fresh) in (0, len(self.edges)), "docs/protocol/handoff.md has other edges"
        assert min(fresh, default=0) >= 0, "a count of edges went backwards"
        with self.lock:
            for i, amount in enumerate(fresh):
                self.counts[i] += amount

    def total(self):
        return dict(zip((name for name, _ in self.edges), self.counts))
