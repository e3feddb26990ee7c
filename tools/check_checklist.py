#!/usr/bin/env python3
"""Every line of docs/protocol/api.md and docs/api-failures.md is held by a test that is there, or says why by none:
check_checklist.py

The last column of their tables names files and, in quotes, the tests in them: `io/http/server_test.cc`
"slow heads...". Three dots stand for any end. A column without a file begins with a reason: "does not
apply:", "planned" or "never sent:".
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = {os.path.join("docs", "protocol", "api.md"): 150, os.path.join("docs", "api-failures.md"): 105}  # least lines
FOLDERS = ["", "src", os.path.join("tests", "cases", "protocol")]
REASONS = ("does not apply:", "planned", "never sent:")


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


def check(page):
    """(lines of the page's tables, what is wrong with them)."""
    wrong, lines = [], 0
    with open(os.path.join(ROOT, page)) as file:
        for number, line in enumerate(file, 1):
            if not line.startswith("|") or set(line) <= set("|- \n") or line.rstrip().endswith("| held by |"):
                continue
            lines += 1
            cell = re.split(r"(?<!\\)\|", line.rstrip().removesuffix("|"))[-1].strip()
            wrong += [f"{page}:{number}: {problem}" for problem in problems(cell)]
    return lines, wrong


def main():
    failed = False
    for page, lines_min in PAGES.items():
        lines, wrong = check(page)
        for problem in wrong:
            print(problem, file=sys.stderr)
        print(f"checklist: {page}: {lines} lines, {len(wrong)} problems")
        failed = failed or bool(wrong) or lines < lines_min
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
