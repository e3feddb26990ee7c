#!/usr/bin/env python3
"""Every line of docs/protocol/api.md is held by a test that is there, or says why by none: check_checklist.py

The last column of its tables names files and, in quotes, the tests in them: `io/http/server_test.cc`
"slow heads...". Three dots stand for any end. A column without a file begins with a reason: "does not
apply:", "planned" or "never sent:".
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join("docs", "protocol", "api.md")
FOLDERS = ["", "src", os.path.join("tests", "cases", "protocol")]
REASONS = ("does not apply:", "planned", "never sent:")
LINES_MIN = 150


def tests_of(path):
    """The names of the tests in a file."""
    with open(path) as file:
        text = file.read()
    if path.endswith(".cc"):
        names = re.findall(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)', text)
        return ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', name)).replace('\\"', '"') for name in names]
    if path.endswith(".py"):
        return [name.removeprefix("test_") for name in re.findall(r"(?:def|class) (\w+)", text)]
    if path.endswith(".mjs"):
        return re.findall(r'await test\("([^"]+)"', text)
    return [line[2:] for line in text.splitlines() if line.startswith("# ")]


def problems(cell):
    """What is wrong with a line's last column."""
    found = re.findall(r'`([^`]+)`((?:,? (?:and )?"[^"]+")*)', cell)
    files = [(name, re.findall(r'"([^"]+)"', quoted)) for name, quoted in found if "." in name and " " not in name]
    if not files:
        if not cell.lower().startswith(REASONS):
            yield "names no test and gives no reason"
        return
    for name, quoted in files:
        path = next((p for p in (os.path.join(ROOT, folder, name) for folder in FOLDERS) if os.path.isfile(p)), None)
        if path is None:
            yield f"there is no file {name}"
            continue
        names = tests_of(path)
        for wanted in quoted:
            start = wanted.removesuffix("...").replace("_", " ").lower()
            if not any(test.replace("_", " ").lower().startswith(start) for test in names):
                yield f'{name} has no test "{wanted}"'


def main():
    wrong, lines = [], 0
    with open(os.path.join(ROOT, PAGE)) as file:
        for number, line in enumerate(file, 1):
            if not line.startswith("|") or set(line) <= set("|- \n") or line.rstrip().endswith("| held by |"):
                continue
            lines += 1
            cell = re.split(r"(?<!\\)\|", line.rstrip().removesuffix("|"))[-1].strip()
            wrong += [f"{PAGE}:{number}: {problem}" for problem in problems(cell)]
    for problem in wrong:
        print(problem, file=sys.stderr)
    print(f"checklist: {lines} lines, {len(wrong)} problems")
    return 1 if wrong or lines < LINES_MIN else 0


if __name__ == "__main__":
    sys.exit(main())
