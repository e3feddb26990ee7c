#!/usr/bin/env python3
"""A worker that was told to stop, and a thread of which does not end, ends itself and says where it stood.

usage: stuck_end_test.py --worker-binary build/release/tests/faults/pd_worker
"""
import argparse
import json
import os
import signal
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STALL_TIME, PATIENCE = 2, 30


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker-binary", required=True)
    binary = os.path.abspath(parser.parse_args().worker_binary)
    with tempfile.TemporaryDirectory(prefix="penstock-stuck-") as folder:
        plan = os.path.join(folder, "faults")
        with open(plan, "w") as file:
            file.write("stall 1000000 3600000\n")  # the transport's thread sleeps for an hour
        os.makedirs(os.path.join(folder, "d", "run"), mode=0o700)
        ours, theirs = os.pipe()
        worker = subprocess.Popen(
            [binary, plan, "1", "--name", "decode-0", "--role", "decode", "--data-dir",
             os.path.join(folder, "d"), "--kv-cache", "off", "--model",
             f"nano={os.path.join(ROOT, 'models/nano')}", "--kv-memory", "96MiB", "--transport",
             "tcp:127.0.0.1:0", "--stall-time", f"{STALL_TIME}s", "--ready-fd", str(theirs)],
            pass_fds=[theirs], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        os.close(theirs)
        try:
            with open(ours) as report:
                assert json.loads(report.readline())["ready"]
            time.sleep(1)  # the transport looks at its plan every 50 ms
            worker.send_signal(signal.SIGTERM)
            began = time.monotonic()
            _, said = worker.communicate(timeout=PATIENCE)
        finally:
            worker.kill()
    took = time.monotonic() - began
    assert worker.returncode > 0, f"exit code {worker.returncode}:\n{said}"
    assert took >= STALL_TIME, f"it was given {took:.1f} s to end"
    assert "still there 2s after everything was answered" in said, said
    threads = said.split("Threads: ")[1].split("; ")
    assert len(threads) >= 3 and any("nanosleep" in line for line in threads), said
    print(f"ended after {took:.1f} s with exit code {worker.returncode}; {len(threads)} threads told")


main()
