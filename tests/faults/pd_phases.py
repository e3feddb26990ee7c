"""The phases of the P/D fault suite: which service, which faults, and what may fail then.

A phase runs the load while its faults() happen, and gives the share of the requests that may end
with an honest error: those of several choices can't be moved once they have begun, nobody is moved
more than three times, and a worker is waited for ten seconds at most.
"""
import os
import signal
import time

import pd_service


class Phase:
    errors_max = 0.0   # of all requests
    clients = 12
    tokens_max = 1000  # of an answer
    prompts = (0, 4096)  # tokens
    leave = 0.02       # of the requests, clients that go away
    transport = "shm"
    pools = "prefill=1,decode=1"
    lease = 3          # seconds
    flags = ()
    turn = 4.0  # seconds of a plan of faults

    def __init__(self, run, rng):
        self.run, self.rng = run, rng
        self.done = {}  # fault -> times

    @property
    def name(self):
        return type(self).__name__.lower()

    def count(self, fault):
        self.done[fault] = self.done.get(fault, 0) + 1

    def open(self):
        return pd_service.Serve("--local-prefill-time", "0", "--transport", self.transport,
                                "--handoff-lease", f"{self.lease}s", *self.flags, pools=self.pools)

    @property
    def quiet(self):
        """Seconds after which nothing may be held: unclaimed, lease and quarantine of the
        handoff, and as much again for a busy machine."""
        return 2 * (10 + self.lease + 2)

    # --- for faults()
    def sleep(self, seconds, end):
        """False when the phase or the load is over."""
        until = min(end, time.monotonic() + seconds)
        while time.monotonic() < until:
            if self.load.failures:
                return False
            time.sleep(min(0.1, max(0, until - time.monotonic())))
        return time.monotonic() < end

    def kill(self, name):
        if name == "gateway":
            self.load.gateway_away = float("inf")
        if self.service.signal(name, signal.SIGKILL):
            self.count(f"kill {name.split('-')[0]}")
        if name == "gateway":
            pd_service.wait_until(lambda: not self.service.pid("gateway") or
                                  not self.service.is_ready(), 5, "the gateway to be gone")
            pd_service.wait_until(self.service.is_ready, 60, "the gateway to be back")
            self.load.gateway_away = time.monotonic()

    def stop(self, name, seconds):
        """SIGSTOP, then SIGCONT to the same process."""
        pid = self.service.pid(name)
        if not pid:
            return
        try:
            os.kill(pid, signal.SIGSTOP)
            self.count(f"stop {name.split('-')[0]}")
            time.sleep(seconds)
        finally:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass


class Kills(Phase):
    """kill -9 of any process at random."""
    errors_max = 0.3

    def faults(self, end):
        while self.sleep(self.rng.uniform(0.2, 4), end):
            self.kill(self.rng.choice([*self.service.workers, *self.service.names]))


class KillsTcp(Kills):
    transport = "tcp"
    pools = "prefill=2,decode=2"


class Stops(Phase):
    """SIGSTOP for 0.1 to 10 s, then SIGCONT."""
    errors_max = 0.3
    flags = ("--kv-fetch-time", "200ms")

    def faults(self, end):
        while self.sleep(self.rng.uniform(0.1, 2), end):
            self.stop(self.rng.choice([*self.service.workers, *self.service.names]),
                      min(self.rng.choice([0.1, 0.5, 1, 2, 3, 4, 6, 10]), self.run.stop_max))


class StopsTcp(Stops):
    transport = "tcp"


class Leaves(Phase):
    """Clients that go away at random times."""
    leave = 0.7
    clients = 16
    pools = "prefill=2,decode=1"

    def faults(self, end):
        while self.sleep(0.5, end):
            pass
        self.done["client left"] = self.load.left


class Churn(Phase):
    """A worker is killed every second."""
    errors_max = 0.6
    pools = "prefill=2,decode=2"

    def faults(self, end):
        while self.sleep(1, end):
            there = [name for name in self.service.workers if self.service.pid(name)]
            if there:
                self.kill(self.rng.choice(there))


class Rolling(Phase):
    """Every worker is restarted by SIGTERM, one by one: nothing may be lost."""
    leave = 0
    pools = "prefill=2,decode=2"

    def faults(self, end):
        while True:
            for name in self.service.workers:
                pid = self.service.pid(name)
                before = self.service.log().count(f"worker {name} ended with exit code 0")
                self.service.signal(name, signal.SIGTERM)
                pd_service.wait_until(lambda: self.service.pid(name) not in (None, pid), 120,
                                      lambda: f"{name} to end and to be started again: {pid} is at "
                                      f"{pd_service.threads_of(pid)}")
                self.service.wait_whole()
                ended = self.service.log().count(f"worker {name} ended with exit code 0")
                assert ended == before + 1, f"{name} did not end with exit code 0 after SIGTERM"
                self.count("SIGTERM " + name.split("-")[0])
                self.load.check()
            if not self.sleep(0.1, end):
                return


class RollingPair(Rolling):
    """With one worker of each kind the other does everything meanwhile."""
    pools = "prefill=1,decode=1"
    transport = "tcp"


SERVE_PHASES = [Kills, Stops, Rolling, Leaves, Churn, KillsTcp, RollingPair, StopsTcp]
SHORT_SERVE_PHASES = [Kills, StopsTcp, Leaves, Rolling]
