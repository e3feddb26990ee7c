"""Services under test: `penstock serve`, and the same processes one by one with test workers.

Both have processes by name: kvd, gateway, and workers like prefill-0. Somebody starts a dead one
again: the supervisor of `serve`, or this module. watch() starts to watch the workers.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import e2e_test  # noqa: E402
import pd_watch  # noqa: E402

FAULTS = os.path.dirname(os.path.abspath(__file__))
REQUEST_TIMEOUT = 60
COMMON = ["--request-timeout", f"{REQUEST_TIMEOUT}s", "--drain-timeout", "30s"]


def threads_of(pid):
    """What the threads of a process wait for, for messages."""
    def told(path):
        try:
            with open(path) as file:
                return file.read().strip()
        except OSError:
            return "?"
    tasks = f"/proc/{pid}/task"
    if not os.path.isdir(tasks):
        return "no such process"
    return [f"{told(f'{tasks}/{task}/comm')}: {told(f'{tasks}/{task}/wchan')} ({told(f'{tasks}/{task}/syscall')})"
            for task in os.listdir(tasks)]


def wait_until(condition, seconds, what):
    """Polls; `what` may be a function, for what is known at the end only."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what() if callable(what) else what}")
        time.sleep(0.05)
    return value


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as response:
        return response.read().decode()


def worker_names(pools):
    return [f"{role}-{i}" for role, count in (pool.split("=") for pool in pools.split(","))
            for i in range(int(count))]


class Service:
    """What both have in common."""

    def __init__(self, pools):
        self.names = ["kvd", *worker_names(pools), "gateway"]
        self.workers = self.names[1:-1]
        self.watches = {}
        self.memory = {}  # role -> bytes after the warm-up

    def watch(self, hits):
        self.watches = {name: pd_watch.Watch(self.worker_socket(name), hits)
                        for name in self.workers}

    def worker_socket(self, name):
        return os.path.join(self.data_dir, "run", f"{name}.sock")

    def signal(self, name, number):
        """False when it was not there."""
        pid = self.pid(name)
        if pid:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return False
        return bool(pid)

    def is_ready(self):
        try:
            return get(self.port, "/readyz") is not None
        except OSError:
            return False

    def gateway_sees(self):
        """Of /metrics, without labels: the sums."""
        sums = {}
        for name, value in re.findall(r"^(penstock_[a-z_]+)(?:\{[^}]*\})? (\S+)$",
                                      get(self.port, "/metrics"), re.M):
            sums[name] = sums.get(name, 0) + float(value)
        return sums

    def is_whole(self):
        """Every process is there, runs, and is connected."""
        if not all(self.pid(name) for name in self.names):
            return False
        if any(watch.load() is None for watch in self.watches.values()):
            return False
        try:
            seen = self.gateway_sees()
        except OSError:
            return False
        return seen["penstock_worker_connected"] == len(self.workers) and self.is_ready()

    def wait_whole(self):
        wait_until(self.is_whole, 120, lambda: f"all processes to be there again: "
                   f"{ {n: self.pid(n) for n in self.names} }, workers say "
                   f"{ {n: w.load() for n, w in self.watches.items()} }")

    def held(self):
        """What is held anywhere, by name; empty when all is quiet."""
        held = {}
        for name, watch in self.watches.items():
            load = watch.load()
            if load is None:
                held[name] = "does not answer"
                continue
            for what in ("running", "waiting", "kv_tokens_used", "open", "blocks_held",
                         "pulls_running"):
                if load.get(what):
                    held[f"{name} {what}"] = load[what]
        seen = self.gateway_sees()
        # The question itself is in flight.
        if seen["penstock_gateway_requests_in_flight"] > 1:
            held["in flight"] = seen["penstock_gateway_requests_in_flight"]
        if seen["penstock_gateway_permits"]:
            held["permits"] = seen["penstock_gateway_permits"]
        if "kvd" in self.names:
            kv = self.kv_stat()
            for path in ("host pinned_blocks", "acquires open_leases", "host filling_blocks"):
                part, what = path.split()
                if kv[part][what]:
                    held[f"kvd {what}"] = kv[part][what]
        return held

    def kv_stat(self):
        done = subprocess.run([e2e_test.BINARY, "kv", "stat", "--json", "--data-dir",
                               self.data_dir], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def memory_now(self):
        """Anonymous memory, by role the most."""
        now = {}
        for name in self.names:
            with open(f"/proc/{self.pid(name)}/status") as file:
                anonymous = int(re.search(r"RssAnon:\s+(\d+) kB", file.read())[1]) << 10
            role = name.split("-")[0]
            now[role] = max(now.get(role, 0), anonymous)
        return now

    def check_quiet(self, seconds):
        """After the load: nothing is held within `seconds`, and memory is back."""
        wait_until(lambda: not self.held(), seconds, lambda: f"nothing to be held: {self.held()}")
        for role, now in self.memory_now().items():
            limit = self.memory.get(role, now) * 1.5 + (64 << 20)
            if now > limit:
                raise AssertionError(f"{role} has {now >> 20} MiB of memory, after the warm-up it "
                                     f"had {self.memory[role] >> 20}")

    def starved(self):
        """How often a gateway heard nothing from a worker for two seconds."""
        return len(re.findall("worker .* is gone: (the worker said nothing|no hello)", self.log()))

    def log_tail(self):
        return self.log()[-6000:]


class Serve(Service):
    """The real thing."""

    def __init__(self, *flags, pools="prefill=1,decode=1"):
        super().__init__(pools)
        self.server = e2e_test.Server("--pools", pools, *COMMON, *flags)
        self.data_dir, self.port = os.path.join(self.server.folder, "d"), self.server.port
        if "off" in flags:
            self.names.remove("kvd")

    def pid(self, name):
        role = name if name in ("kvd", "gateway") else "worker"
        found = self.server.children(role, "" if role != "worker" else name)
        return found[0] if len(found) == 1 else None

    def log(self):
        return self.server.log()

    def close(self, failed):
        for watch in self.watches.values():
            watch.close()
        self.server.__exit__(AssertionError if failed else None)


class Parts(Service):
    """Gateway, KV daemon and test workers, whose faults come from a file; see pd_worker.cc."""

    def __init__(self, binary, options, *, pools, transport, cache, seed):
        super().__init__(pools)
        if not cache:
            self.names.remove("kvd")
        self.folder = tempfile.mkdtemp(prefix="penstock-pd-")
        self.data_dir = os.path.join(self.folder, "d")
        os.makedirs(os.path.join(self.data_dir, "run"), mode=0o700)
        self.faults = os.path.join(self.folder, "faults")
        self.plan([])
        self.stderr = open(os.path.join(self.folder, "stderr"), "w+")
        self.lock = threading.Lock()
        self.processes, self.commands, self.starts = {}, {}, 0
        self.closing, self.seed, self.port = False, seed, 0
        common = ["--data-dir", self.data_dir, "--kv-cache", "on" if cache else "off"]
        program = e2e_test.BINARY
        if cache:
            self.commands["kvd"] = [program, "kvd", "--data-dir", self.data_dir,
                                    "--kv-host-memory", "64MiB", "--kv-disk-size", "1GiB"]
        for name in self.workers:
            self.commands[name] = [
                binary, self.faults, "SEED", "--name", name, "--role", name.split("-")[0], *common,
                "--model", f"nano={os.path.join(e2e_test.ROOT, 'models/nano')}",
                "--engine-threads", "1", "--kv-memory", "96MiB", "--transport",
                f"shm:{self.data_dir}/run/{name}.kv" if transport == "shm" else "tcp:127.0.0.1:0",
                *options]
        self.commands["proxy"] = [sys.executable, os.path.join(FAULTS, "pd_proxy.py"), "--faults",
                                  self.faults, "--seed", "SEED", *(f"{self.worker_socket(n)}={self.proxy_socket(n)}"
                                                 for n in self.workers)]
        self.commands["gateway"] = [program, "gateway", *common, *COMMON, "--port", "0",
                                    "--local-prefill-time", "0"]
        for name in self.workers:
            self.commands["gateway"] += ["--worker", f"{name}=unix:{self.proxy_socket(name)}"]
        for name in self.commands:
            self._start(name)
        self.keeper = threading.Thread(target=self._keep, daemon=True)
        self.keeper.start()

    def proxy_socket(self, name):
        return os.path.join(self.data_dir, "run", f"{name}.proxy")

    def _start(self, name):
        self.starts += 1
        command = [word if word != "SEED" else str(self.seed * 1000 + self.starts)
                   for word in self.commands[name]]
        if name == "proxy":
            self.processes[name] = subprocess.Popen(command, stderr=self.stderr)
            for worker in self.workers:
                wait_until(lambda w=worker: os.path.exists(self.proxy_socket(w)), 20, "the proxy")
            return
        ours, theirs = os.pipe()
        if name == "gateway" and self.port:
            command[command.index("--port") + 1] = str(self.port)
        process = subprocess.Popen([*command, "--ready-fd", str(theirs)], pass_fds=[theirs],
                                   stderr=self.stderr, stdin=subprocess.DEVNULL)
        os.close(theirs)
        with open(ours) as report:
            line = report.readline()
        if line and json.loads(line)["ready"]:
            self.processes[name] = process
            if name == "gateway":
                self.port = json.loads(line)["port"]
        elif process.wait() not in (-signal.SIGKILL,):
            raise AssertionError(f"{name} did not start: {line} {self.log_tail()}")

    def _keep(self):
        """Starts the dead again."""
        while not self.closing:
            with self.lock:
                for name in list(self.commands):
                    process = self.processes.get(name)
                    if not self.closing and (process is None or process.poll() is not None):
                        self.stderr.write(f"pd_faults: {name} ended: {process and process.returncode}\n")
                        self._start(name)
            time.sleep(0.1)

    def plan(self, lines):
        """The faults of workers and proxy from now on (they look every 0.1 s)."""
        with open(self.faults + ".new", "w") as file:
            file.write("".join(f"{line}\n" for line in lines))
        os.replace(self.faults + ".new", self.faults)

    def pid(self, name):
        process = self.processes.get(name)
        return process.pid if process and process.poll() is None else None

    def log(self):
        return e2e_test.read(self.stderr.name)

    def close(self, failed):
        for watch in self.watches.values():
            watch.close()
        self.closing = True
        self.keeper.join()
        codes = {}
        for name in reversed(list(self.commands)):
            process = self.processes[name]
            process.send_signal(signal.SIGTERM)
            try:
                codes[name] = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = "did not stop"
        self.stderr.close()
        codes.pop("proxy")
        log = self.log_tail()
        if failed:
            sys.stderr.write(log)
        shutil.rmtree(self.folder, ignore_errors=True)
        if not failed and any(codes.values()):
            raise AssertionError(f"processes ended with {codes}: {log}")
