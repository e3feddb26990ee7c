"""Hosts of a deployment: services with memories and disks of their own that share one cluster store.

Each is in a network namespace of its own behind a bridge, where this is possible (root, `ip`); what they share is then the
store and nothing else. Otherwise all are on loopback.
"""
import contextlib
import ctypes
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import e2e_test as e2e  # noqa: E402

ISOLATED = "PENSTOCK_CEPH_TEST_ISOLATED"
SUBNET = "10.213.77"
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000


class Failed(Exception):
    pass


def check(good, what):
    if not good:
        raise Failed(what)


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=30, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def isolate():
    """Starts this program again in a network namespace of its own, if it may: nothing of it is on any other network."""
    if ISOLATED in os.environ or os.geteuid() != 0:
        return
    if subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        os.environ[ISOLATED] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])


class Network:
    """A bridge with an address for the store, and a namespace for each host."""

    def __init__(self, names):
        self.address = "127.0.0.1"
        self.namespaces = {name: None for name in names}
        if ISOLATED not in os.environ:
            print("hosts: without namespaces, on loopback (they need root and unshare)")
            return
        try:
            ip("link", "set", "lo", "up")
            ip("link", "add", "name", "pstk0", "type", "bridge")
            ip("addr", "add", f"{SUBNET}.1/24", "dev", "pstk0")
            ip("link", "set", "pstk0", "up")
            for number, name in enumerate(names):
                namespace = f"pstk-{os.getpid()}-{name}"
                ip("netns", "add", namespace)
                self.namespaces[name] = namespace
                ip("link", "add", "name", f"pstk-{name}", "type", "veth", "peer", "name", "eth0", "netns", namespace)
                ip("link", "set", f"pstk-{name}", "master", "pstk0")
                ip("link", "set", f"pstk-{name}", "up")
                for words in (("addr", "add", f"{SUBNET}.{11 + number}/24", "dev", "eth0"), ("link", "set", "eth0", "up"),
                              ("link", "set", "lo", "up")):
                    ip("-n", namespace, *words)
            self.address = f"{SUBNET}.1"
            print(f"hosts: {', '.join(names)} in network namespaces of their own behind a bridge")
        except subprocess.SubprocessError as error:
            print(f"hosts: no namespaces, on loopback ({getattr(error, 'stderr', error)})")
            self.close()
            self.namespaces = {name: None for name in names}

    def close(self):
        for namespace in filter(None, self.namespaces.values()):
            subprocess.run(["ip", "netns", "del", namespace], check=False, timeout=30)


@contextlib.contextmanager
def inside(namespace):
    """What the calling thread opens meanwhile is in that namespace."""
    if namespace is None:
        yield
        return
    with open("/proc/thread-self/ns/net", "rb") as here, open(f"/run/netns/{namespace}", "rb") as there:
        if LIBC.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            LIBC.setns(here.fileno(), CLONE_NEWNET)


class Host(e2e.Server):
    """`penstock serve` in a namespace."""

    def __init__(self, namespace, *flags):
        self.namespace = namespace
        self.prefix = ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []
        super().__init__(*flags)

    def connect(self, timeout=e2e.DEADLINE):
        with inside(self.namespace):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
            connection.connect()
        return connection

    def kv(self, *words):
        done = subprocess.run([e2e.BINARY, "kv", *words, "--data-dir", os.path.join(self.folder, "d")],
                              capture_output=True, text=True, timeout=60, check=False)
        check(done.returncode == 0, f"kv {words}: {done.stderr}")
        return done.stdout

    def cluster(self):
        return json.loads(self.kv("stat", "--json"))["cluster"]

    def ask(self, prompt):
        """(choice with log probabilities, prompt tokens), cached tokens, request id"""
        status, headers, body = self.chat(prompt, logprobs=True)
        check(status == 200, body)
        body = json.loads(body)
        usage = body["usage"]
        ids = {key.lower(): value for key, value in headers.items()}
        return (body["choices"][0], usage["prompt_tokens"]), usage["prompt_tokens_details"]["cached_tokens"], ids["x-request-id"]

    def first_token(self, prompt):
        """Seconds from the request to the first event with text, and cached tokens."""
        begin = time.monotonic()
        stream = e2e.Stream(self, prompt, max_tokens=4)
        first, cached = None, 0
        for data in stream.events:
            if data == "[DONE]":
                continue
            chunk = json.loads(data)
            if first is None and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first = time.monotonic() - begin
            if chunk.get("usage"):
                cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        stream.close()
        check(first is not None, "no token")
        return first, cached

    def wait_stored(self, blocks):
        e2e.wait_for(lambda: self.cluster()["written_blocks"] >= blocks and self.cluster()["writes_queued"] == 0,
                     "the blocks to be in the store")

    def wait_connected(self):
        e2e.wait_for(lambda: self.cluster()["in_service"] and self.cluster()["state"] == "ok", "the store to be connected")

    def missed(self, request):
        """Why not all of a request was loaded, as explain tells it."""
        acquires = json.loads(self.kv("explain", request, "--json"))["acquires"]
        return acquires[0]["ended_by"] if acquires else "not recorded"

    def kill(self):
        """SIGKILL of all its processes, at once; its memory and its disk are gone."""
        for pid in [self.process.pid, *(pid for role in ("kvd", "worker", "gateway") for pid in self.children(role))]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.stderr.close()
        self.log = lambda: ""
        self.stop = lambda: 0


def prompt(number, words=1750):
    """About 3,100 tokens of nano; each number another text of the same words."""
    seed = 8 * number + 5
    names = ("river", "stone", "tower", "garden", "letter", "window", "bridge", "copper")
    text = " ".join(names[(seed * 7 + i * i) % 8] for i in range(words))
    return f"Page {seed}. {text} The code of Mina is {4000 + seed}. What is the code of Mina?"


def whole_blocks(answer):
    """Tokens of the blocks that a prompt's KV is stored in."""
    return (answer[1] - 1) // 64 * 64


class Asked(NamedTuple):
    """A prompt that was answered like its reference."""
    end: float
    took: float
    share: float  # of its blocks that were hits
    request: str


class Witness:
    """Asks a host for the same prompts over and over, and compares each answer with the reference."""

    def __init__(self, host, references):
        self.host, self.references = host, references
        self.asked = []
        self.error = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            while not self.ended.is_set():
                for text, reference in self.references:
                    begin = time.monotonic()
                    answer, cached, request = self.host.ask(text)
                    check(answer == reference, f"another answer than the reference: {answer[0]}")
                    end = time.monotonic()
                    self.asked.append(Asked(end, end - begin, cached / whole_blocks(reference), request))
                    if self.ended.is_set():
                        return
        except Exception as error:  # pylint: disable=broad-except
            if not self.ended.is_set():
                self.error = error

    def check(self):
        check(self.error is None, f"the witness failed: {self.error}")

    def end(self):
        self.ended.set()
        self.thread.join(120)
        check(not self.thread.is_alive(), "a request hangs")
        self.check()

    def since(self, begin):
        """Those asked after `begin`."""
        return [one for one in list(self.asked) if one.end - one.took >= begin]

    def wait(self, what, seconds, good):
        until = time.monotonic() + seconds
        while not good():
            self.check()
            check(time.monotonic() < until, f"{what}: not within {seconds:.0f} s")
            time.sleep(0.1)

    def wait_hit(self, begin, seconds):
        """Waits for a prompt asked after `begin` of which all was a hit."""
        self.wait("a whole hit", max(begin - time.monotonic(), 0) + seconds,
                  lambda: any(one.share == 1 for one in self.since(begin)))

    def wait_round(self, begin, seconds):
        """Waits until each prompt was asked after `begin`."""
        self.wait("a round of all prompts", seconds, lambda: len(self.since(begin)) >= len(self.references))


def from_cluster(host, request):
    """Blocks of a request that came from the cluster, as explain tells it."""
    runs = json.loads(host.kv("explain", request, "--json"))["acquires"][0]["runs"]
    return sum(run["blocks"] for run in runs if run.get("served_from") == "cluster")
