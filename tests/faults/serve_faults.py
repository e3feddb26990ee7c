#!/usr/bin/env python3
"""`penstock serve` under conversations while its KV daemon and its worker are killed.

usage: serve_faults.py --binary build/release/penstock [--kills N] [--conversations N] [--seed S]

The answers of all conversations are computed once without a cache. Then the same conversations run
again and again beside kills (SIGKILL, at random, two of three of the KV daemon): every answer must
be the same, no request may fail for a dead KV daemon, and its death restarts nobody else. While a
killed worker is away requests may fail; they are sent again, and counted.
"""
import argparse
import concurrent.futures
import json
import os
import random
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import e2e_test  # noqa: E402

TURNS = 4


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def conversation(seed, number):
    """The messages of the user: a long first one (half of them share it), then questions."""
    words = random.Random(seed * 1000 + number // 2)
    text = " ".join(words.choice("amber birch copper delta ember flint grove harbor iris jade".split())
                    for _ in range(150))
    own = random.Random(seed * 1000 + number + 500)
    first = f"Keep this in mind: the code of box {words.randint(10, 99)} is {words.randint(100, 999)}. {text}"
    return [f"{first} What is {own.randint(1, 50)} + {own.randint(1, 50)}?"] + [
        f"And what is {own.randint(1, 50)} + {own.randint(1, 50)}?" for _ in range(TURNS - 1)]


class Driver:
    def __init__(self, server):
        self.server = server
        self.lock = threading.Lock()
        self.worker_back = 0  # until when requests may fail: a worker was dead
        self.requests = self.hits = self.cached_tokens = self.again = 0

    def ask(self, messages):
        """The text of the answer; sends again what a killed worker took along."""
        while True:
            began = time.monotonic()
            problem = None
            try:
                status, _, body = self.server.request(
                    "POST", "/v1/chat/completions",
                    {"model": "nano", "temperature": 0, "max_tokens": 24, "messages": messages})
                if status == 200:
                    break
                problem = f"{status}: {body}"
            except OSError as error:
                problem = repr(error)
            with self.lock:
                excused = began <= self.worker_back
                self.again += 1
            check(excused, f"a request failed and no worker had been killed: {problem}")
            time.sleep(0.2)
        answer = json.loads(body)
        cached = answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
        with self.lock:
            self.requests += 1
            self.cached_tokens += cached
            self.hits += cached > 0
        return answer["choices"][0]["message"]["content"] or ""

    def talk(self, questions):
        messages, answers = [], []
        for question in questions:
            messages.append({"role": "user", "content": question})
            answers.append(self.ask(messages))
            messages.append({"role": "assistant", "content": answers[-1]})
        return answers


# The processes of a service: their role, and what the name of a worker begins with.
PARTS = {"kvd": ("kvd", ""), "gateway": ("gateway", ""),
         "prefill": ("worker", "prefill"), "decode": ("worker", "decode")}
WORKERS = ("prefill", "decode")


def pids(server):
    return {part: server.children(*process) for part, process in PARTS.items()}


def kill_one(driver, role):
    """Kills it and waits until it is there again; the others must be who they were."""
    server = driver.server
    before = e2e_test.wait_for(
        lambda: (lambda p: p if all(len(v) == 1 for v in p.values()) else None)(pids(server)),
        "all processes")
    if role in WORKERS:
        with driver.lock:
            driver.worker_back = float("inf")
    os.kill(before[role][0], signal.SIGKILL)
    after = e2e_test.wait_for(
        lambda: (lambda p: p if len(p[role]) == 1 and p[role] != before[role] else None)(pids(server)),
        f"the {role} to be started again")
    if role in WORKERS:
        e2e_test.wait_for(server.is_ready, "the service to be ready again")
        with driver.lock:
            driver.worker_back = time.monotonic()
    for other in before:
        check(other == role or after[other] == before[other],
              f"the death of the {role} restarted the {other}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    e2e_test.BINARY = os.path.abspath(options.binary)
    print(f"serve_faults.py --kills {options.kills} --conversations {options.conversations} "
          f"--seed {options.seed}", flush=True)
    rng = random.Random(options.seed)
    talks = [conversation(options.seed, i) for i in range(options.conversations)]

    with e2e_test.Server("--kv-cache", "off") as server, \
            concurrent.futures.ThreadPoolExecutor(options.conversations) as pool:
        cold = Driver(server)
        expected = list(pool.map(cold.talk, talks))
        check(cold.hits == 0, "hits without a cache")
    print(f"expected: {cold.requests} answers", flush=True)

    with e2e_test.Server("--kv-host-memory", "64MiB", "--kv-disk-size", "1GiB") as server:
        driver = Driver(server)
        stop = threading.Event()
        rounds = [0] * len(talks)

        def again_and_again(i):
            while not stop.is_set():
                answers = driver.talk(talks[i])
                for turn, (got, wanted) in enumerate(zip(answers, expected[i])):
                    check(got == wanted, f"conversation {i}, turn {turn}: {got!r}, not {wanted!r}")
                rounds[i] += 1

        with concurrent.futures.ThreadPoolExecutor(options.conversations) as pool:
            running = [pool.submit(again_and_again, i) for i in range(len(talks))]

            def wait_for_hits(what):
                before = driver.hits

                def more():
                    for task in running:
                        if task.done():
                            task.result()
                    return driver.hits > before
                e2e_test.wait_for(more, what)

            try:
                wait_for_hits("the first hits")
                for kill in range(options.kills):
                    role = WORKERS[kill // 3 % 2] if kill % 3 == 1 else "kvd"
                    time.sleep(rng.uniform(0, 0.5))
                    kill_one(driver, role)
                    wait_for_hits(f"hits after the death of the {role}")
                    if kill % 10 == 9 or kill + 1 == options.kills:
                        print(f"{kill + 1} kills: {driver.requests} answers as without a cache, "
                              f"{driver.hits} with hits ({driver.cached_tokens} tokens), "
                              f"{driver.again} sent again after a worker's death", flush=True)
            finally:
                stop.set()
            for task in running:
                task.result()
        check(min(rounds) > 0, "a conversation was never finished")
    print(f"{options.kills} passed, 0 failed")


if __name__ == "__main__":
    main()
