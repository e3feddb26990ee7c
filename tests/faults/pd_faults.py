#!/usr/bin/env python3
"""P/D serving under faults: no fault may yield a wrong token, a hang or a leak.

usage: pd_faults.py --binary build/release/penstock --worker-binary build/release/tests/faults/pd_worker
                    [--minutes M] [--seed S] [--short] [--phase NAME]...

A set of mixed requests is answered cold by one process; then clients ask for them again and again
while processes die and stop, connections break and bytes are corrupted (docs/faults.md). Every
whole answer must be the same. In the end a table tells how often each edge of
docs/protocol/handoff.md was taken; in a run of 20 minutes or more each fault edge must have been
taken 20 times. The seed chooses requests and faults; the moments remain the machine's.
"""
import argparse
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import e2e_test  # noqa: E402
import pd_edges  # noqa: E402
import pd_load  # noqa: E402
import pd_parts  # noqa: E402
import pd_phases  # noqa: E402
import pd_service  # noqa: E402
import pd_watch  # noqa: E402

LONG_MINUTES = 20
STARVED_ERRORS = 0.3


class Run:
    def __init__(self, options):
        self.options = options
        self.rng = random.Random(options.seed)
        self.stop_max = 3 if options.short else 10
        self.hits = pd_watch.Hits()
        self.gains = pd_edges.Gains(self.hits)
        self.requests = pd_load.make_requests(options.seed, 30 if options.short else 60)
        self.answers = None
        self.totals = {"whole": 0, "honest errors": 0, "left": 0, "cut": 0}
        self.faults = {}

    def compute_reference(self):
        service = pd_service.Serve("--kv-cache", "off", pools="mixed=1")
        failed = True
        try:
            began = time.monotonic()
            self.answers = pd_load.reference(service.port, self.requests)
            failed = False
        finally:
            service.close(failed)
        tokens = [sum(a["usage"][i] for a in self.answers) for i in (0, 1)]
        print(f"reference: {len(self.answers)} answers, {tokens[0]} + {tokens[1]} tokens, "
              f"{time.monotonic() - began:.1f} s", flush=True)

    def rare(self):
        return pd_edges.rare(self.hits.edges, self.hits.counts)

    def phase(self, kind, seconds, seed):
        phase = kind(self, random.Random(seed))
        service, failed, began = phase.open(), True, time.monotonic()
        try:
            service.watch(self.hits)
            service.wait_whole()
            # What memory the load costs without faults.
            self.load(phase, service, f"{seed}/warm").stop_after(min(4, seconds / 4))
            service.check_quiet(phase.quiet)
            service.memory = service.memory_now()
            phase.load = load = self.load(phase, service, seed)
            phase.service = service
            phase.faults(time.monotonic() + seconds)
            load.check()
            load.stop()
            service.wait_whole()
            quiet = time.monotonic()
            service.check_quiet(phase.quiet)
            quiet = time.monotonic() - quiet
            asked = load.whole + load.errors + load.left
            print(f"{phase.name}: {load.whole} answers equal, {load.errors} honest errors, "
                  f"{load.left} left, {load.cut} cut by the gateway's death, slowest "
                  f"{load.slowest:.1f} s, quiet after {quiet:.1f} s; {phase.done}; "
                  f"{time.monotonic() - began:.0f} s", flush=True)
            print(f"    {len(self.rare())} fault edges taken less than {pd_edges.HITS_MIN} times",
                  flush=True)
            for error, times in sorted(load.honest.items(), key=lambda e: -e[1])[:3]:
                print(f"    {times} x {error}", flush=True)
            assert load.whole >= phase.clients, "hardly any request was answered"
            allowed = phase.errors_max
            if service.starved() and allowed < STARVED_ERRORS:
                # No fault of this phase: the machine is too busy for a heartbeat in two seconds.
                print(f"    workers were silent {service.starved()} times", flush=True)
                allowed = STARVED_ERRORS
            assert load.errors <= allowed * asked, \
                f"{load.errors} of {asked} requests failed, more than {allowed:.0%}"
            stuck = [line for line in service.log().splitlines() if "after everything was answered" in line]
            assert not stuck, f"a worker did not end by itself: {stuck[0]}"
            failed = False
        finally:
            if failed:
                print(f"{phase.name} FAILED after {phase.done}", flush=True)
            service.close(failed)
        for name, amount in (("whole", load.whole), ("honest errors", load.errors),
                             ("left", load.left), ("cut", load.cut)):
            self.totals[name] += amount
        for fault, times in phase.done.items():
            self.faults[fault] = self.faults.get(fault, 0) + times

    def load(self, phase, service, seed):
        return pd_load.Load(service.port, self.requests, self.answers, seed, phase.clients,
                            pd_service.REQUEST_TIMEOUT, phase.leave, phase.tokens_max,
                            phase.prompts)


def plan(options):
    serve, parts = pd_phases.SERVE_PHASES, pd_parts.PARTS_PHASES
    if options.phase:
        named = {kind.__name__.lower(): kind for kind in serve + parts}
        return [named[name] for name in options.phase]
    if options.short:
        return pd_phases.SHORT_SERVE_PHASES + pd_parts.SHORT_PARTS_PHASES
    # Taking turns, so that a run of any length sees both kinds.
    return [kind for i in range(max(len(serve), len(parts))) for kind in serve[i:i + 1] +
            parts[i:i + 1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--worker-binary", required=True)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--short", action="store_true", help="about a minute")
    parser.add_argument("--phase", action="append", help="only this one; repeatable")
    options = parser.parse_args()
    e2e_test.BINARY = os.path.abspath(options.binary)
    minutes = 1 if options.short else options.minutes
    print(f"pd_faults.py {'--short' if options.short else f'--minutes {minutes}'} "
          f"--seed {options.seed}", flush=True)
    # Whoever ends it wants the processes gone and the table so far.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    run = Run(options)
    run.compute_reference()
    kinds = plan(options)
    end = began + minutes * 60
    is_long = minutes >= LONG_MINUTES and not options.phase
    round_ = 0
    try:
        # A busy machine may need more time for what is rare.
        while round_ == 0 or time.monotonic() < end or (
                is_long and run.rare() and time.monotonic() < end + minutes * 30):
            for i, kind in enumerate(kinds):
                left = end - time.monotonic()
                # A phase's start, warm-up and quiet take some ten seconds, too.
                seconds = max(6, left / (len(kinds) - i) - 10) if options.short else 30
                if is_long and round_ == 0:
                    seconds = max(15, len(getattr(kind, "plans", [])) * (kind.turn + 0.3) + 1)
                if left > 0 or options.short or is_long and run.rare():
                    run.phase(kind, seconds, f"{options.seed}/{round_}/{i}")
            round_ += 1
            if options.short:
                break
            kinds = plan(options)
            if is_long and run.rare():
                # The phases whose plans reach what is still rare.
                kinds = [max(pd_parts.PARTS_PHASES, key=lambda kind: max(
                    run.gains.worth((kind.__name__.lower(), i)) for i in range(len(kind.plans))))]
    finally:
        rare = pd_edges.show(run.hits.edges, run.hits.counts)
    print(f"{run.totals}; faults: {run.faults}; {time.monotonic() - began:.0f} s")
    if is_long:
        assert not rare, f"fault edges taken less than {pd_edges.HITS_MIN} times: {rare}"
    print("passed")


if __name__ == "__main__":
    main()
