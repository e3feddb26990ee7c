#!/usr/bin/env python3
"""The cluster tier, end to end: cluster_test.py --binary build/release/penstock --faulty-mount FILE.so

Two services with memories and disks of their own share a folder. FILE.so is tests/faults/faulty_mount.c, preloaded.
"""
import json
import os
import signal
import sys
import tempfile
import time
import unittest

import e2e_test as e2e

FAULTY_MOUNT = None


class Cluster(unittest.TestCase):
    def hosts(self, folder, *more):
        secret = os.path.join(folder, "kv.secret")
        if not os.path.exists(secret):
            with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write("5a" * 32 + "\n")
        # Loading is never too slow here: what is shown is that the bytes are the same.
        return ("--kv-secret-file", secret, "--kv-fetch-time", "10s",
                "--cluster-store", "posix:" + os.path.join(folder, "store"), *more)

    kv = e2e.Stopping.kv
    asked = e2e.Stopping.asked

    def prompt(self, seed, words=1750):
        names = ("river", "stone", "tower", "garden", "letter", "window", "bridge", "copper")
        text = " ".join(names[(seed * 7 + i * i) % 8] for i in range(words))
        return f"Page {seed}. {text} The code of Mina is {4000 + seed}. What is the code of Mina?"

    def cluster(self, server):
        return json.loads(self.kv(server, "stat", "--json"))["cluster"]

    def stored(self, server, blocks):
        e2e.wait_for(lambda: self.cluster(server)["written_blocks"] >= blocks, "the blocks to be stored")

    def objects(self, folder, kind="extents"):
        found = []
        for parent, _, files in os.walk(os.path.join(folder, "store", kind)):
            found += [os.path.join(parent, name) for name in files]
        return found

    def test_what_a_dead_host_computed_another_loads(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = self.hosts(folder)
            with e2e.Server(*flags) as first:
                started = time.monotonic()
                cold = self.asked(first, self.prompt(5))
                cold_s = time.monotonic() - started
                blocks = (cold[1] - 1) // 64
                self.stored(first, blocks)
                first.process.kill()  # and with it all of the host, its memory and its disk
                first.process.wait()
                for role in ("kvd", "worker", "gateway"):
                    for pid in first.children(role):
                        os.kill(pid, signal.SIGKILL)
                first.process.stdout.close()
                first.stderr.close()
                first.log = lambda: ""
                first.stop = lambda: 0
            with e2e.Server(*flags) as second:
                started = time.monotonic()
                hit = self.asked(second, self.prompt(5))
                print(f"{cold[1]} prompt tokens: cold {cold_s:.3f} s, from the cluster "
                      f"{time.monotonic() - started:.3f} s", file=sys.stderr)
                self.assertEqual(hit[:3], (*cold[:2], blocks * 64))
                self.assertIn("from cluster", self.kv(second, "explain", hit[3]))
                self.assertIn("cluster", self.kv(second, "stat"))
                self.assertIn(f"this host knows of {blocks} blocks", self.kv(second, "ls"))
                swept = json.loads(self.kv(second, "gc", "--dry-run", "--json"))["cluster"]
                self.assertEqual((swept["removed"], swept["whole"]), (0, True))
                self.assertIn("cluster store: 0 objects", self.kv(second, "gc"))
                again = self.asked(second, self.prompt(5))
                self.assertEqual(again[:3], hit[:3])
                self.assertIn("from memory", self.kv(second, "explain", again[3]))

    def test_damaged_objects_are_misses(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = self.hosts(folder)
            with e2e.Server(*flags) as first:
                cold = self.asked(first, self.prompt(6))
                self.stored(first, (cold[1] - 1) // 64)
            damaged = self.objects(folder) + self.objects(folder, "small")
            self.assertTrue(damaged)
            for path in damaged:
                with open(path, "r+b") as file:
                    file.seek(os.path.getsize(path) * 2 // 3)
                    byte = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 1]))
            with e2e.Server(*flags) as second:
                got = self.asked(second, self.prompt(6))
                self.assertEqual(got[:2], cold[:2])
                self.assertLess(got[2], (cold[1] - 1) // 64 * 64)
                self.assertGreater(self.cluster(second)["corrupt"], 0)

    def test_a_mount_that_fails_or_hangs_changes_no_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = self.hosts(folder, "--cluster-fetch-limit", "200ms")
            with e2e.Server(*flags) as first:
                answers = {seed: self.asked(first, self.prompt(seed, 900)) for seed in range(10, 14)}
                self.stored(first, sum((cold[1] - 1) // 64 for cold in answers.values()))
            fault = os.path.join(folder, "fault")
            with open(fault, "w") as file:
                file.write("none")
            os.environ.update(LD_PRELOAD=FAULTY_MOUNT, FAULTY_MOUNT=os.path.join(folder, "store"),
                              FAULTY_MOUNT_FAULT=fault)
            try:
                second = e2e.Server(*flags)
            finally:
                for name in ("LD_PRELOAD", "FAULTY_MOUNT", "FAULTY_MOUNT_FAULT"):
                    del os.environ[name]
            with second:
                for seed, kind in enumerate(("EIO", "ENOSPC", "ESTALE", "hang"), 10):
                    with open(fault, "w") as file:
                        file.write(kind)
                    started = time.monotonic()
                    got = self.asked(second, self.prompt(seed, 900))
                    self.assertEqual(got[:2], answers[seed][:2], kind)
                    self.assertEqual(got[2], 0, kind)
                    print(f"{kind}: answered in {time.monotonic() - started:.3f} s", file=sys.stderr)
                    for new in range(3):  # the store's writes fail, too; nobody notices
                        self.assertEqual(self.asked(second, self.prompt(20 + 4 * seed + new, 300))[2], 0)
                    with open(fault, "w") as file:
                        file.write("none")
                    e2e.wait_for(lambda: self.cluster(second)["in_service"], "the store to be back")
                # What was not there for a while is a hit again, on a host that never saw it.
                with e2e.Server(*flags) as third:
                    for seed, cold in answers.items():
                        self.assertEqual(self.asked(third, self.prompt(seed, 900))[:3],
                                         (*cold[:2], (cold[1] - 1) // 64 * 64))


def main():
    global FAULTY_MOUNT
    at = sys.argv.index("--faulty-mount")
    FAULTY_MOUNT = os.path.abspath(sys.argv[at + 1])
    del sys.argv[at:at + 2]
    e2e.main()


if __name__ == "__main__":
    main()
