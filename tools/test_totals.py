#!/usr/bin/env python3
"""Adds up what the test programs printed in a log: test_totals.py LOG.

doctest prints a line a program, ctest a line a suite (its programs' own lines are in the suite's
LastTest.log), unittest "Ran N tests". The last line is the one that machines read.
"""
import pathlib
import re
import sys

text = pathlib.Path(sys.argv[1]).read_text(errors="replace")
logs = sorted(pathlib.Path("build").glob("*/Testing/Temporary/LastTest.log"))
passed = failed = skipped = 0
for name, body in [("console", text)] + [(str(p), p.read_text(errors="replace")) for p in logs]:
    for p, f, s in re.findall(r"test cases:\s*\d+ \|\s*(\d+) passed \|\s*(\d+) failed \|\s*(\d+) skipped", body):
        passed, failed = passed + int(p), failed + int(f)
    for count in re.findall(r"^Ran (\d+) tests? in", body, re.M):
        passed += int(count)
for p, f in re.findall(r"^(?:clients: )?(\d+) passed, (\d+) failed$", text, re.M):
    passed, failed = passed + int(p), failed + int(f)
for p, f in re.findall(r"^fuzz: (\d+) passed, (\d+) failed$", text, re.M):
    passed, failed = passed + int(p), failed + int(f)
for line in sorted(set(re.findall(r"^.*: skipped, .*$", text, re.M))):
    skipped += 1
    print(line)
print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(1 if failed else 0)
