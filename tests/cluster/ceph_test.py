#!/usr/bin/env python3
"""The cluster tier on a real Ceph under faults: no wrong byte or token, no hang, misses with a reason.

usage: ceph_test.py [--build build/release] [--dir build/ceph-test] [--keep] [--scene NAME]...

Brings up a cluster of 12 OSDs with cephx (tools/ceph_dev.sh), makes a key of least rights and runs
the scenes below as that user; takes the cluster down again unless --keep. The scenes with faults have
two observers. `store_load` reads extents at half of the bandwidth that was measured, checks every byte,
and tells what missed and when: the length of a stall is its. And a whole service that has to load all
from the cluster is asked the same prompts over and over: each answer is to be that of the host that
computed it. Services are in network namespaces where this may be (hosts.py).
Exit status 1: a scene failed. Prints stall lengths and rates.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time

import hosts
from hosts import Failed, check

ROOT = hosts.ROOT
GRACE = 6.0          # osd heartbeat grace of the cluster
STALL_KILL = 5.0     # after SIGKILL
STALL_STOP = GRACE + 5.0
BREAKER = 4.0        # more for a service: the longest pause of its breaker, and its own deadline
SETTLED = 3.0        # all hits again for that long
EXTENTS = 48
EXTENT_BYTES = 4 << 20
# What docs/cluster-ceph.md gives the daemons.
CAPS = ["mon", "allow r", "osd",
        "allow rwx pool=penstock-extents namespace=penstock*, allow rwx pool=penstock-small namespace=penstock*"]


class Cluster:
    def __init__(self, folder, address):
        self.folder = folder
        self.address = address
        self.conf = os.path.join(folder, "ceph.conf")
        self.keyring = os.path.join(folder, "penstock.keyring")
        self.user = "client.penstock"

    def run(self, *words, limit=900):
        done = subprocess.run([os.path.join(ROOT, "tools/ceph_dev.sh"), "--dir", self.folder, *map(str, words)],
                              stdout=subprocess.PIPE, text=True, timeout=limit)
        check(done.returncode == 0, f"ceph_dev.sh {' '.join(map(str, words))} ended with {done.returncode}")
        return done.stdout

    def ceph(self, *words):
        return self.run("ceph", *words, limit=120)

    def up(self):
        self.run("up", "--auth", "--address", self.address)
        with open(self.keyring, "w", encoding="utf-8") as file:
            os.chmod(self.keyring, 0o600)
            file.write(self.ceph("auth", "get-or-create", self.user, *CAPS))

    def wait(self, what, seconds, good):
        until = time.monotonic() + seconds
        while not good():
            check(time.monotonic() < until, f"{what}: not within {seconds} s")
            time.sleep(0.5)

    def states(self):
        return {s["name"]: s["num"] for s in json.loads(self.ceph("pg", "stat", "-f", "json"))["pg_summary"]["num_pg_by_state"]}

    def wait_healthy(self):
        self.wait("all placement groups active+clean", 180,
                  lambda: set(self.states()) == {"active+clean"})

    def store(self, name_space):
        """For --cluster-store."""
        return f"rados:{self.conf},user={self.user},keyring={self.keyring},namespace={name_space}"

    def as_user(self):
        return ["--conf", self.conf, "--user", self.user, "--keyring", self.keyring]


class Load:
    """A store_load at work; its lines are kept."""

    def __init__(self, test, what, *options):
        self.lines = []
        self.process = subprocess.Popen(
            [test.load_binary, what, *test.cluster.as_user(), "--extents", str(EXTENTS), "--bytes", str(EXTENT_BYTES),
             *map(str, options)], stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def stop(self, limit=60):
        """Ends before its seconds are over."""
        self.process.send_signal(signal.SIGTERM)
        self.end(limit)

    def end(self, limit):
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            raise Failed(f"store_load hangs: no end within {limit} s")
        finally:
            self.reader.join()
        check(sum(line["wrong"] for line in self.lines) == 0, "wrong bytes")
        check(code == 0, f"store_load ended with {code}")

    def between(self, begin, end):
        return [line for line in self.lines if begin <= line["t"] < end]

    def wait_for(self, good, seconds):
        """Waits until a new line is good; returns its time."""
        seen = len(self.lines)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            while seen < len(self.lines):
                if good(self.lines[seen]):
                    return self.lines[seen]["t"]
                seen += 1
            time.sleep(0.05)
        return None


def total(lines, key):
    return sum(line[key] for line in lines)


def reasons(lines, key="misses"):
    counts = {}
    for line in lines:
        for reason, count in line[key].items():
            counts[reason] = counts.get(reason, 0) + count
    return counts


def longest_pause(lines):
    """The longest time without a hit."""
    at = [line["t"] for line in lines if line["hits"]]
    if not at:
        return float("inf")
    edges = [lines[0]["t"], *at, lines[-1]["t"]]
    return max(b - a for a, b in zip(edges, edges[1:]))


def stall(lines):
    """From the first to the last line with a miss; 0 without one."""
    at = [line["t"] for line in lines if line["misses"]]
    return at[-1] - at[0] + 0.1 if at else 0.0


class Test:
    def __init__(self, options):
        self.network = hosts.Network(["a", "b", "c"] if not options.keep else [])
        self.cluster = Cluster(os.path.abspath(options.dir), self.network.address)
        self.binary = os.path.join(options.build, "penstock")
        self.load_binary = os.path.join(options.build, "tests/cluster/store_load")
        self.contract_binary = os.path.join(options.build, "src/io/rados/io_rados_test")
        self.rate = None
        self.has_extents = False
        self.loader = self.witness = None  # a host that loads all, and who asks it

    # --- scenes, in this order ---

    def contract(self):
        """The contract of a block store, as the user of least rights."""
        environment = dict(os.environ, PENSTOCK_CEPH_CONF=self.cluster.conf, PENSTOCK_CEPH_USER=self.cluster.user,
                           PENSTOCK_CEPH_KEYRING=self.cluster.keyring)
        done = subprocess.run([self.contract_binary], env=environment, cwd=ROOT, timeout=300,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout.strip().splitlines()[-2])
        check(done.returncode == 0, done.stdout)

    def least_rights(self):
        """The key may do what the store does and nothing beside."""
        def rados(*words):
            return subprocess.run(["rados", "-c", self.cluster.conf, "-n", self.cluster.user, "--keyring",
                                   self.cluster.keyring, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=60)
        self.cluster.ceph("osd", "pool", "create", "of-others", "1", "1")
        for words in (["-p", "of-others", "ls"], ["-p", "penstock-small", "-N", "others", "put", "x", "/etc/hostname"]):
            done = rados(*words)
            check(done.returncode != 0 and "not permitted" in done.stdout, f"{words}: {done.stdout}")
        done = subprocess.run(["ceph", "-c", self.cluster.conf, "-n", self.cluster.user, "--keyring", self.cluster.keyring,
                               "osd", "pool", "rm", "of-others", "of-others", "--yes-i-really-really-mean-it"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        check(done.returncode != 0 and "EACCES" in done.stdout, done.stdout)
        print("another pool, another name space, a change to the cluster: refused")

    def bench(self):
        """`penstock bench kv --tier cluster` on this cluster: the whole tier against `rados bench`, and first tokens."""
        done = subprocess.run([self.binary, "bench", "kv", "--tier", "cluster", "--quick", "--json", "--cluster-store",
                               self.cluster.store("penstock")], stdout=subprocess.PIPE, timeout=240, text=True, check=True)
        figures = json.loads(done.stdout)["figures"]
        for figure in figures:
            check("skipped" not in figure, f"{figure['name']}: {figure.get('skipped')}")
            print(f"{figure['name']}: {figure['value']:.4g} {figure['unit']}; {figure['baseline_name']} {figure['baseline']:.4g}; "
                  f"ratio {figure['ratio']:.2f} (aim {figure['aim']})")
        check(len(figures) == 5, f"{len(figures)} figures")

    # --- scenes with hosts ---

    def host(self, name, *more):
        """A service whose memory and disk nobody else has; all share one store and one secret."""
        secret = os.path.join(self.cluster.folder, "kv.secret")
        if not os.path.exists(secret):
            with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
                file.write("5a" * 32 + "\n")
        # What a stall costs is measured in the store's terms; a loaded machine is to make no miss of its own.
        return hosts.Host(self.network.namespaces[name], "--kv-secret-file", secret, "--kv-fetch-time", "10s",
                          "--cluster-fetch-limit", "2s", "--cluster-store", self.cluster.store("penstock-hosts"), *more)

    def two_hosts(self):
        """What A computed B hits; A is killed and B still hits."""
        prompts = [hosts.prompt(seed) for seed in range(1, 5)]
        cold, hit = [], []
        with self.host("a") as a, self.host("b") as b:
            a.wait_connected()
            b.wait_connected()
            a.first_token(hosts.prompt(99))  # warm, both
            b.first_token(hosts.prompt(98))
            for text in prompts[:3]:
                cold.append(a.first_token(text)[0])
            answers = [a.ask(text)[0] for text in prompts]
            stored = [hosts.prompt(99), *prompts]
            a.wait_stored(sum(hosts.whole_blocks(answers[0]) // 64 for _ in stored) - len(stored))
            for text, answer in zip(prompts[:3], answers):
                seconds, cached = b.first_token(text)
                hit.append(seconds)
                check(cached == hosts.whole_blocks(answer), f"only {cached} tokens were hits on B")
                again, _, request = b.ask(text)
                check(again == answer, "B answers otherwise")
                check(hosts.from_cluster(b, request) == 0, "B asks the cluster for what it has")
            a.kill()
            answer, cached, request = b.ask(prompts[3])
            check(answer == answers[3], "B answers otherwise after A's death")
            check(cached == hosts.whole_blocks(answer), f"after A's death only {cached} tokens were hits")
            blocks = hosts.from_cluster(b, request)
            check(blocks == cached // 64, f"of {cached // 64} blocks {blocks} came from the cluster")
            print(f"A killed: B hits {cached} of {answer[1]} tokens from the cluster")
        cold, hit = sorted(cold)[1], sorted(hit)[1]
        print(f"first token of {answers[0][1]} tokens: cold {1e3 * cold:.0f} ms, from the cluster on a host that never saw them "
              f"{1e3 * hit:.0f} ms: {cold / hit:.1f} x")
        check(cold / hit >= 5, "not five times as fast")

    def rados(self, pool, *words):
        """The hosts' objects, by hand."""
        return subprocess.run(["rados", "-c", self.cluster.conf, "-n", self.cluster.user, "--keyring", self.cluster.keyring,
                               "-p", f"penstock-{pool}", "-N", "penstock-hosts", *words], check=True, timeout=60,
                              stdout=subprocess.PIPE, text=True).stdout

    def watch(self):
        """Begins to ask a host that has to load all from the cluster, and does not end before the last scene."""
        if self.witness is not None:
            return
        # More than its memory and the tier's buffers (64 MiB) hold, and no disk: each prompt comes from the cluster each time.
        texts = [hosts.prompt(number) for number in range(20, 46)]
        with self.host("a") as a:
            a.wait_connected()
            references = [(text, a.ask(text)[0]) for text in texts]
            a.wait_stored(sum(hosts.whole_blocks(answer) // 64 for _, answer in references))
            memory = a.cluster()["written_block_bytes"] * 3 // len(texts)  # three of them
        self.loader = self.host("b", "--kv-disk", "off", "--kv-host-memory", str(memory))
        self.loader.wait_connected()
        self.witness = hosts.Witness(self.loader, references)
        self.witness.wait_hit(time.monotonic(), 30)

    def tell(self, begin):
        """What the service's clients saw since then: all answers are the references', or the witness has failed."""
        self.witness.check()
        asked = self.witness.since(begin)
        misses = [one for one in asked if one.share < 1]
        why = sorted({self.loader.missed(one.request) for one in misses})
        worst = max((one.end - one.took for one in misses), default=begin) - begin
        print(f"    service: {len(asked)} prompts answered like the reference, {len(misses)} not whole hits {why}, the last of them "
              f"asked {worst:.1f} s after; the longest took {max((one.took for one in asked), default=0):.1f} s")
        return why

    def end(self):
        if self.witness is not None:
            stat = self.loader.cluster()
            asked = len(self.witness.asked)
            self.witness.end()
            print(f"the service was asked {asked} times; {stat['extents_read']} extents and {stat['singles_read']} single blocks read")
            check(2 * stat["extents_read"] > asked, "the prompts came from memory")

    def close(self):
        if self.witness is not None:
            self.witness.ended.set()
            self.loader.kill()
            self.loader.__exit__(None, None, None)

    def write_extents(self):
        Load(self, "write", "--deadline-ms", 20000, "--depth", 8).end(180)

    def need_extents(self):
        if not self.has_extents:
            self.write_extents()
        self.has_extents = True

    def measure(self, what, *options):
        begin = time.monotonic()
        load = Load(self, what, *options)
        load.end(180)
        moving = [line for line in load.lines if line["hits"] or line["put"]]
        check(moving, f"nothing was done: {load.lines[-1:]}")
        seconds = load.lines[-1]["t"] - load.lines[0]["t"]
        check(seconds < time.monotonic() - begin, "a clock of its own")
        return (total(load.lines, "hits") + total(load.lines, "put")) * EXTENT_BYTES / (1 << 20) / max(seconds, 0.1)

    def reading(self, seconds, *options):
        self.need_extents()
        if self.rate is None:  # measured anew in each scene: other load on the machine changes
            self.rate = self.measure("read", "--deadline-ms", 20000, "--depth", 16, "--seconds", 6) / 2
        return Load(self, "read", "--rate", f"{self.rate:.1f}", "--depth", 8, "--seconds", seconds, *options)

    def lose(self, load, how, osd, limit):
        """One OSD is lost under load: at most one stall, hits before it and after it."""
        begin = time.monotonic()
        self.cluster.run(how, osd)
        time.sleep(limit + SETTLED + 3)
        end = time.monotonic()
        lines = load.between(begin, end)
        length = stall(lines)
        after = load.between(end - SETTLED, end)
        print(f"{how} of osd.{osd}: stall {length:.1f} s (limit {limit:.0f}), misses {reasons(lines)}, hits {total(lines, 'hits')}")
        if length > limit:
            seconds = {}
            for line in lines:
                of = seconds.setdefault(int(line["t"] - begin), [0, 0])
                of[0] += line["hits"]
                of[1] += sum(line["misses"].values())
            print("second: [hits, misses]", seconds)
        check(length <= limit, f"the stall is longer than {limit} s")
        check(not reasons(after) and total(after, "hits") > 0, f"not all are hits again: {reasons(after)}")
        settled = begin + limit + BREAKER
        self.witness.wait_hit(settled, 30)
        self.tell(begin)
        late = [one for one in self.witness.since(settled) if one.share < 1]
        check(not late, f"the service does not hit all again: {late}")

    def killed(self):
        """SIGKILL of 2 of 12 OSDs, one after the other."""
        self.watch()
        self.cluster.wait_healthy()
        load = self.reading(120)
        time.sleep(3)
        for osd in (3, 7):
            self.lose(load, "kill", osd, STALL_KILL)
        load.stop()
        self.cluster.run("start", 3, 7)
        self.cluster.wait_healthy()

    def stopped(self):
        """SIGSTOP of 2 of 12 OSDs, one after the other."""
        self.watch()
        load = self.reading(150)
        time.sleep(3)
        for osd in (2, 9):
            self.lose(load, "stop", osd, STALL_STOP)
        load.stop()
        self.cluster.run("cont", 2, 9)
        self.cluster.wait_healthy()

    def third(self):
        """A third loss is one too many: misses with a reason and no hang; back, hits return."""
        self.watch()
        load = self.reading(150)
        time.sleep(2)
        begin = time.monotonic()
        self.cluster.run("kill", 1, 4, 8)
        time.sleep(14)
        lost = load.between(begin + 6, time.monotonic())
        print(f"3 of 12 killed: misses {reasons(lost)}, hits {total(lost, 'hits')}")
        check(set(reasons(lost)) <= {"too_slow"} and reasons(lost), "no misses, or with another reason")
        self.cluster.run("start", 1, 4, 8)
        started = time.monotonic()
        back = load.wait_for(lambda line: line["hits"] and not line["misses"], 40)
        check(back, "no hits after they are back")
        print(f"all back: hits again after {back - started:.1f} s")
        self.cluster.wait_healthy()
        self.witness.wait_hit(time.monotonic() + BREAKER, 60)
        load.stop()
        check(load.lines[-1]["stranded"] == 0, "buffers are still held")
        check(set(self.tell(begin)) == {"too_slow"}, "the service's misses have no reason, or another")

    def monitor(self):
        """The monitor stopped for 20 s: hits go on."""
        self.watch()
        load = self.reading(60)
        time.sleep(2)
        begin = time.monotonic()
        self.cluster.run("stop", "mon")
        time.sleep(20)
        self.cluster.run("cont", "mon")
        lines = load.between(begin, time.monotonic())
        load.stop()
        pause = longest_pause(lines)
        print(f"mon stopped for 20 s: hits {total(lines, 'hits')}, misses {reasons(lines)}, longest pause {pause:.1f} s")
        check(pause <= 2, "hits did not go on")
        check(not self.tell(begin), "the service's hits did not go on")

    def full(self):
        """A full cluster, then a used-up quota: puts are refused at once, reads go on, and nobody waits."""
        self.watch()
        def refused(what, *seeds):
            begin = time.monotonic()
            written = self.loader.cluster()["written_blocks"]
            load = self.reading(60, "--new-rate", 2)
            for seed in seeds:
                self.loader.ask(hosts.prompt(seed))  # computed and answered; the store takes nothing of it
            if seeds:
                hosts.e2e.wait_for(lambda: "full" in self.loader.cluster()["state"], "the service to say that the store is full")
            time.sleep(max(0, begin + 8 - time.monotonic()))
            load.stop()
            print(f"{what}: puts {reasons(load.lines, 'not_put')}, done {total(load.lines, 'put')}, hits {total(load.lines, 'hits')}, "
                  f"state '{load.lines[-1]['state'][:40]}...'")
            check(set(reasons(load.lines, "not_put")) == {"evicted_share"} and total(load.lines, "put") == 0, "puts")
            check(total(load.lines, "hits") > 0, "no hits")
            check(load.lines[-1]["state"].startswith("full"), "the state does not say so")
            check(self.loader.cluster()["in_service"] and self.loader.cluster()["written_blocks"] == written, "it was written to")
            self.witness.wait_hit(begin, 30)
            self.tell(begin)
        try:
            self.set_full_ratios(0.01, 0.015, 0.02)
            self.cluster.wait("full OSDs", 60, lambda: "OSD_FULL" in self.cluster.ceph("health", "detail"))
            refused("full OSDs", 60, 61)
        finally:
            self.set_full_ratios(0.85, 0.90, 0.95)
        self.cluster.wait("no full OSDs", 60, lambda: "OSD_FULL" not in self.cluster.ceph("health", "detail"))
        try:
            self.cluster.ceph("osd", "pool", "set-quota", "penstock-extents", "max_bytes", "1000000")
            self.cluster.wait("a full pool", 60, lambda: "POOL_FULL" in self.cluster.ceph("health", "detail"))
            refused("used-up quota")
        finally:
            self.cluster.ceph("osd", "pool", "set-quota", "penstock-extents", "max_bytes", "0")
        self.cluster.wait("no full pool", 60, lambda: "POOL_FULL" not in self.cluster.ceph("health", "detail"))
        load = self.reading(4, "--new-rate", 2)
        written = self.loader.cluster()["written_blocks"]
        self.loader.ask(hosts.prompt(62))
        load.end(60)
        check(total(load.lines, "put") > 0, f"no puts again: {reasons(load.lines, 'not_put')}")
        hosts.e2e.wait_for(lambda: self.loader.cluster()["written_blocks"] > written, "the service to write again")

    def set_full_ratios(self, near, backfill, full):
        """All three: out of order, none would count."""
        for name, value in (("nearfull", near), ("backfillfull", backfill), ("full", full)):
            self.cluster.ceph("osd", f"set-{name}-ratio", str(value))

    def corrupt(self):
        """Shards damaged on a disk, and objects changed by hand: misses at worst."""
        self.watch()
        def where(name, name_space):
            return json.loads(self.cluster.ceph("osd", "map", "penstock-extents", name, name_space, "-f", "json"))
        extents = self.rados("extents", "ls").split()
        check(len(extents) > 13, "the hosts' extents are not there")
        self.need_extents()
        places = {"load-0": where("load-0", "penstock"), **{name: where(name, "penstock-hosts") for name in extents[:2]}}
        osd = places["load-0"]["acting"][1]  # it has a shard of each: there are twelve, on twelve OSDs
        self.cluster.run("kill", osd)
        for name, at in places.items():
            self.damage_shard(osd, f"{at['pgid']}s{at['acting'].index(osd)}", name)
        self.cluster.run("start", osd)
        self.cluster.wait_healthy()
        begin = time.monotonic()
        load = self.reading(6)
        load.end(60)
        print(f"one bit of a shard: hits {total(load.lines, 'hits')}, misses {reasons(load.lines)}, wrong 0")
        check(total(load.lines, "hits") > 0, "no hits")
        self.witness.wait_round(begin, 120)
        self.tell(begin)
        self.replace_by_hand()

        found = self.loader.cluster()["corrupt"]
        begin = time.monotonic()
        for name in extents[2:14]:
            self.flip("extents", name)
        singles = [name for name in self.rados("small", "ls").split() if name.endswith(".h1")][:40]
        check(singles, "no blocks are in the small pool")
        for name in singles:
            self.flip("small", name)
        flipped = time.monotonic()
        self.witness.wait_round(flipped, 180)
        found = self.loader.cluster()["corrupt"] - found
        print(f"12 extents and {len(singles)} single blocks changed by hand: the service found {found}")
        check(found > 0, "the damage was not seen")
        check("corrupt" in self.tell(begin), "no miss says so")
        # A host with room for it computes what was removed, and it is written again.
        with self.host("a") as a:
            a.wait_connected()
            for text, answer in self.witness.references:
                check(a.ask(text)[0] == answer, "another answer than before the damage")
            hosts.e2e.wait_for(lambda: a.cluster()["writes_queued"] == 0, "the blocks to be in the store")
        again = time.monotonic()
        self.witness.wait_round(again, 180)
        whole = sum(one.share == 1 for one in self.witness.since(again))
        print(f"computed and written again: {whole} of {len(self.witness.since(again))} are whole hits")
        check(whole >= 0.9 * len(self.witness.since(again)), "what was damaged was not written again")

    def damage_shard(self, osd, pgid, of):
        """One bit of an object's shard, on the disk of an OSD that is down."""
        junk = os.path.join(self.cluster.folder, "junk")
        def tool(*words):
            return subprocess.run(["ceph-objectstore-tool", "--data-path", f"{self.cluster.folder}/osd{osd}", "--no-mon-config",
                                   "--pgid", pgid, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        listed = [json.loads(line) for line in tool("--op", "list").stdout.splitlines()]
        name = next(json.dumps(one[1]) for one in listed if one[1]["oid"] == of)
        good = tool(name, "get-bytes").stdout
        check(len(good) > 1000, "the shard was not read")
        with open(junk, "wb") as file:
            file.write(good[:500] + bytes([good[500] ^ 1]) + good[501:])
        check(tool(name, "set-bytes", junk).returncode == 0, "the shard was not written")

    def replace_by_hand(self):
        """Another object's bytes under a name of store_load's: its checksums tell."""
        junk = os.path.join(self.cluster.folder, "junk")
        with open(junk, "wb") as file:
            file.write(os.urandom(EXTENT_BYTES))
        subprocess.run(["rados", "-c", self.cluster.conf, "-n", self.cluster.user, "--keyring", self.cluster.keyring,
                        "-p", "penstock-extents", "-N", "penstock", "put", "load-1", junk], check=True, timeout=60)
        load = self.reading(6)
        try:
            load.end(60)
            raise Failed("another object's bytes were taken for load-1's")
        except Failed as error:
            check(str(error) == "wrong bytes", str(error))
        print(f"an object replaced by hand: found by its checksum, {total(load.lines, 'wrong')} times")
        self.write_extents()

    def flip(self, pool, name):
        """One bit of a host's object, by hand, two thirds into it: of a block's bytes."""
        junk = os.path.join(self.cluster.folder, "junk")
        self.rados(pool, "get", name, junk)
        with open(junk, "r+b") as file:
            file.seek(os.path.getsize(junk) * 2 // 3)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        self.rados(pool, "put", name, junk)


SCENES = ["contract", "least_rights", "bench", "two_hosts", "killed", "stopped", "third", "monitor", "full", "corrupt"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--dir", default="build/ceph-test")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--scene", action="append", choices=SCENES)
    options = parser.parse_args()
    os.chdir(ROOT)
    if not options.keep:
        hosts.isolate()
    hosts.e2e.BINARY = os.path.abspath(os.path.join(options.build, "penstock"))
    test = Test(options)
    began = time.monotonic()
    passed, failed = [], []
    try:
        test.cluster.up()
        print(f"cluster: {time.monotonic() - began:.0f} s", flush=True)
        for name in options.scene or SCENES:
            scene = getattr(test, name)
            test.rate = None
            print(f"--- {name}: {scene.__doc__}", flush=True)
            since = time.monotonic()
            try:
                scene()
                if name == (options.scene or SCENES)[-1]:
                    test.end()
                passed.append(name)
                print(f"    {time.monotonic() - since:.0f} s", flush=True)
            except (Failed, AssertionError, OSError, subprocess.SubprocessError, StopIteration) as error:
                failed.append(name)
                print(f"FAILED {name}: {error}", flush=True)
                break  # the cluster is not what the next scene wants
    finally:
        test.close()
        if not options.keep:
            test.cluster.run("down")
            test.network.close()
    print(f"{'failed: ' + ', '.join(failed) if failed else 'all good'}, {time.monotonic() - began:.0f} s")
    print(f"{len(passed)} passed, {len(failed)} failed")  # for tools/test_totals.py
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
