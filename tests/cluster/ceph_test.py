#!/usr/bin/env python3
"""The cluster tier's store on a real Ceph under faults: no wrong byte, no hang, misses with a reason.

usage: ceph_test.py [--build build/release] [--dir build/ceph-test] [--keep] [--scene NAME]...

Brings up a cluster of 12 OSDs with cephx (tools/ceph_dev.sh), makes a key of least rights and runs
the scenes below as that user; takes the cluster down again unless --keep. `store_load` reads extents
at half of the bandwidth that was measured, checks every byte, and tells what missed and when. The
scenes with hosts start services, in network namespaces where this may be (hosts.py).
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

    def bandwidth(self):
        """Written, read back; against `rados bench` on the same pool and object size in the same run."""
        self.need_extents()
        rates = {"write": [], "read": [], "rados write": [], "rados read": []}
        for turn in (1, 2):  # alternating, as the machine's other load changes
            rates["rados write"].append(self.rados_bench("write", "-b", str(EXTENT_BYTES), "--no-cleanup"))
            rates["write"].append(self.measure("write", "--deadline-ms", 20000, "--depth", 16,
                                               "--first", turn * 1000))
            rates["rados read"].append(self.rados_bench("seq"))
            rates["read"].append(self.measure("read", "--deadline-ms", 20000, "--depth", 16, "--seconds", 6))
        for what in ("write", "read"):
            ours, theirs = max(rates[what]), max(rates["rados " + what])
            print(f"{what}: {ours:.0f} MiB/s; rados bench {theirs:.0f}; ratio {ours / theirs:.2f}")

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
        """What A computed B hits; A is killed and B still hits, also when an object is damaged by hand."""
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
        self.damage(prompts[:2], answers)

    def damage(self, prompts, answers):
        """One bit of each block of the small pool, by hand: misses, told as corrupt, and the same answers."""
        def rados(*words):
            return subprocess.run(["rados", "-c", self.cluster.conf, "-n", self.cluster.user, "--keyring", self.cluster.keyring,
                                   "-p", "penstock-small", "-N", "penstock-hosts", *words], check=True, timeout=60,
                                  stdout=subprocess.PIPE, text=True).stdout
        junk = os.path.join(self.cluster.folder, "junk")
        names = [name for name in rados("ls").split() if name.endswith(".h1")][:40]
        check(names, "no blocks are in the small pool")
        for name in names:
            rados("get", name, junk)
            with open(junk, "r+b") as file:
                file.seek(os.path.getsize(junk) * 2 // 3)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))
            rados("put", name, junk)
        with self.host("c") as c:
            c.wait_connected()
            lost = 0
            for text, answer in zip(prompts, answers):
                got, cached, _ = c.ask(text)
                check(got == answer, "another answer than before the damage")
                lost += hosts.whole_blocks(answer) - cached
            print(f"{len(names)} objects damaged by hand: {c.cluster()['corrupt']} found, {lost} tokens computed again, same answers")
            check(c.cluster()["corrupt"] > 0 and lost > 0, "the damage was not seen")

    def answers(self):
        """A host that has to load all from the cluster, while two OSDs die under half of the bandwidth."""
        # More than its memory and the tier's buffers (64 MiB) hold, and no disk: each prompt comes from the cluster each time.
        texts = [hosts.prompt(number) for number in range(20, 46)]
        with self.host("a") as a:
            a.wait_connected()
            references = [(text, a.ask(text)[0]) for text in texts]
            a.wait_stored(sum(hosts.whole_blocks(answer) // 64 for _, answer in references))
            memory = a.cluster()["written_block_bytes"] * 3 // len(texts)  # three of them
        with self.host("b", "--kv-disk", "off", "--kv-host-memory", str(memory)) as b:
            b.wait_connected()
            load = self.reading(60)
            witness = hosts.Witness(b, references)
            try:
                began = time.monotonic()
                witness.wait_hit(began, 30)
                for osd in (5, 10):
                    killed = time.monotonic()
                    self.cluster.run("kill", osd)
                    back = witness.wait_hit(killed + 0.5, 30)
                    print(f"kill of osd.{osd}: whole hits again {back + 0.5:.1f} s later")
                settled = time.monotonic()
                time.sleep(8)
            finally:
                witness.end()
            load.end(120)
            late = [one for one in witness.since(settled)]
            check(late and all(share == 1 for _, _, share in late), f"after the stalls not all are hits: {late}")
            partly = sum(1 for one in witness.asked if one[2] < 1)
            stat = b.cluster()
            print(f"{len(witness.asked)} prompts asked, {partly} not whole hits, all answers the reference's; "
                  f"{stat['extents_read']} extents and {stat['singles_read']} single blocks read, the longest took "
                  f"{max(took for _, took, _ in witness.asked):.1f} s")
            check(2 * stat["extents_read"] > len(witness.asked), "the prompts came from memory")
        self.cluster.run("start", 5, 10)
        self.cluster.wait_healthy()

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

    def rados_bench(self, what, *options):
        done = subprocess.run(["rados", "-c", self.cluster.conf, "-n", self.cluster.user, "--keyring", self.cluster.keyring,
                               "-p", "penstock-extents", "-N", "penstock", "bench", "6", what, "-t", "16", "--run-name",
                               "rados-bench", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        check(done.returncode == 0, done.stdout)
        line = next(line for line in done.stdout.splitlines() if line.startswith("Bandwidth (MB/sec)"))
        return float(line.split(":")[1])

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

    def killed(self):
        """SIGKILL of 2 of 12 OSDs, one after the other."""
        self.cluster.wait_healthy()
        load = self.reading(3 + 2 * (STALL_KILL + SETTLED + 4) + 4)
        time.sleep(3)
        for osd in (3, 7):
            self.lose(load, "kill", osd, STALL_KILL)
        load.end(60)
        self.cluster.run("start", 3, 7)
        self.cluster.wait_healthy()

    def stopped(self):
        """SIGSTOP of 2 of 12 OSDs, one after the other."""
        load = self.reading(3 + 2 * (STALL_STOP + SETTLED + 4) + 4)
        time.sleep(3)
        for osd in (2, 9):
            self.lose(load, "stop", osd, STALL_STOP)
        load.end(60)
        self.cluster.run("cont", 2, 9)
        self.cluster.wait_healthy()

    def third(self):
        """A third loss is one too many: misses with a reason and no hang; back, hits return."""
        load = self.reading(75)
        time.sleep(2)
        self.cluster.run("kill", 1, 4, 8)
        begin = time.monotonic()
        time.sleep(12)
        lost = load.between(begin + 6, time.monotonic())
        print(f"3 of 12 killed: misses {reasons(lost)}, hits {total(lost, 'hits')}")
        check(set(reasons(lost)) <= {"too_slow"} and reasons(lost), "no misses, or with another reason")
        self.cluster.run("start", 1, 4, 8)
        back = load.wait_for(lambda line: line["hits"] and not line["misses"], 40)
        check(back, "no hits after they are back")
        print(f"all back: hits again after {back - begin - 12:.1f} s")
        load.end(120)
        check(load.lines[-1]["stranded"] == 0, "buffers are still held")
        self.cluster.wait_healthy()

    def monitor(self):
        """The monitor stopped for 20 s: hits go on."""
        load = self.reading(26)
        time.sleep(2)
        begin = time.monotonic()
        self.cluster.run("stop", "mon")
        time.sleep(20)
        self.cluster.run("cont", "mon")
        lines = load.between(begin, time.monotonic())
        load.end(60)
        pause = longest_pause(lines)
        print(f"mon stopped for 20 s: hits {total(lines, 'hits')}, misses {reasons(lines)}, longest pause {pause:.1f} s")
        check(pause <= 2, "hits did not go on")

    def full(self):
        """A full cluster, then a used-up quota: puts are refused at once and reads go on."""
        def refused(what):
            load = self.reading(12, "--new-rate", 2)
            load.end(60)
            print(f"{what}: puts {reasons(load.lines, 'not_put')}, done {total(load.lines, 'put')}, hits {total(load.lines, 'hits')}, "
                  f"state '{load.lines[-1]['state'][:40]}...'")
            check(set(reasons(load.lines, "not_put")) == {"evicted_share"} and total(load.lines, "put") == 0, "puts")
            check(total(load.lines, "hits") > 0, "no hits")
            check(load.lines[-1]["state"].startswith("full"), "the state does not say so")
        try:
            self.set_full_ratios(0.01, 0.015, 0.02)
            self.cluster.wait("full OSDs", 60, lambda: "OSD_FULL" in self.cluster.ceph("health", "detail"))
            refused("full OSDs")
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
        load.end(60)
        check(total(load.lines, "put") > 0, f"no puts again: {reasons(load.lines, 'not_put')}")

    def set_full_ratios(self, near, backfill, full):
        """All three: out of order, none would count."""
        for name, value in (("nearfull", near), ("backfillfull", backfill), ("full", full)):
            self.cluster.ceph("osd", f"set-{name}-ratio", str(value))

    def corrupt(self):
        """A shard damaged on its disk, and a whole object replaced by hand."""
        where = json.loads(self.cluster.ceph("osd", "map", "penstock-extents", "load-0", "penstock", "-f", "json"))
        shard = 1
        osd = where["acting"][shard]
        self.cluster.run("kill", osd)
        junk = os.path.join(self.cluster.folder, "junk")
        def tool(*words):
            return subprocess.run(["ceph-objectstore-tool", "--data-path", f"{self.cluster.folder}/osd{osd}", "--no-mon-config",
                                   "--pgid", f"{where['pgid']}s{shard}", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=120)
        listed = [json.loads(line) for line in tool("--op", "list").stdout.splitlines()]
        name = next(json.dumps(one[1]) for one in listed if one[1]["oid"] == "load-0")
        good = tool(name, "get-bytes").stdout
        check(len(good) > 1000, "the shard was not read")
        with open(junk, "wb") as file:
            file.write(good[:500] + bytes([good[500] ^ 1]) + good[501:])
        check(tool(name, "set-bytes", junk).returncode == 0, "the shard was not written")
        self.cluster.run("start", osd)
        self.cluster.wait_healthy()
        load = self.reading(6)
        load.end(60)
        print(f"one bit of a shard: hits {total(load.lines, 'hits')}, misses {reasons(load.lines)}, wrong 0")
        check(total(load.lines, "hits") > 0, "no hits")

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
        load = self.reading(6)
        load.end(60)
        print(f"written again: hits {total(load.lines, 'hits')}")


SCENES = ["contract", "least_rights", "bandwidth", "bench", "two_hosts", "answers", "killed", "stopped", "third", "monitor", "full",
          "corrupt"]


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
    failed = []
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
                print(f"    {time.monotonic() - since:.0f} s", flush=True)
            except (Failed, AssertionError, OSError, subprocess.SubprocessError, StopIteration) as error:
                failed.append(name)
                print(f"FAILED {name}: {error}", flush=True)
                break  # the cluster is not what the next scene wants
    finally:
        if not options.keep:
            test.cluster.run("down")
            test.network.close()
    print(f"{'failed: ' + ', '.join(failed) if failed else 'all good'}, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
