#!/usr/bin/env python3
"""Checks every #include against tools/layers.txt: what a folder may use, and that it uses it.

A line is `FOLDER: NAME...`: folders of src/ (also `bench`, `proto`) and groups of third-party
headers in angle brackets, defined by lines `<GROUP> PREFIX...`. Standard and system headers are
free, except those listed under `<clocks-threads-files>`, which a folder must be allowed by name.
Tests (*_test.cc) may also include what the line `tests:` allows.

Also: one name, one class. Two classes of one name in one namespace are taken for each other's by the
linker, which no compiler tells.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

SCOPE = re.compile(r'^(?:namespace ?([\w:]*) ?\{|(\}  // namespace)|(?:class|struct) (\w+)(?: final)?(?: ?: [^;{]*)? ?\{)')


def classes_of(text):
    """Full names of the classes that a file defines for all the program."""
    scopes, names = [], []
    for line in text.splitlines():
        if not (match := SCOPE.match(line)):
            continue
        opened, closed, name = match.groups()
        if opened is not None:
            scopes.append(opened)
        elif closed:
            scopes.pop()
        elif "" not in scopes:  # that is the nameless one
            names.append("::".join([*scopes, name]))
    return names


def read_rules():
    groups, rules = {}, {}
    for number, line in enumerate((ROOT / "tools/layers.txt").read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        if line.startswith("<"):
            name, *prefixes = line.split()
            groups[name] = prefixes
        elif ":" in line:
            folder, allowed = line.split(":", 1)
            rules[folder.strip()] = allowed.split()
        else:
            sys.exit(f"tools/layers.txt:{number}: neither a rule nor a group: {line}")
    return groups, rules


def folder_of(path, folders):
    """The longest rule name that is a prefix of the path."""
    hits = [f for f in folders if path == f or path.startswith(f + "/")]
    return max(hits, key=len, default=None)


def group_of(header, groups):
    for name, prefixes in groups.items():
        if any(header == p or header.startswith(p.rstrip("*")) and p.endswith(("/", "*")) for p in prefixes):
            return name
    return None


def main():
    groups, rules = read_rules()
    used = {folder: set() for folder in rules}
    problems = []
    files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.h", "*.cc", "*.inc"],
                           cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    checked = 0
    defined = {}
    for file in files:
        path = file.removeprefix("src/")
        folder = folder_of(path, rules)
        if folder is None:
            if file.startswith(("src/", "bench/")):
                problems.append(f"{file}: its folder has no line in tools/layers.txt")
            continue
        is_test = file.endswith(("_test.cc", "_fuzz.cc")) or file.startswith("tests/")
        allowed = set(rules[folder]) | (set(rules.get("tests", [])) if is_test else set())
        checked += 1
        text = (ROOT / file).read_text(errors="replace")
        for name in classes_of(text):
            first = defined.setdefault(name, file)
            if first != file:
                problems.append(f"{file}: {first} has a {name} as well: rename one, or put it into a nameless namespace")
        for quote, header in INCLUDE.findall(text):
            if quote == '"':
                target = folder_of(header, rules)
                if target is None and re.search(r"\.pb\.h$", header):
                    target = "proto"
                if target is None and (ROOT / file).parent.joinpath(header).exists():
                    target = folder
                if target is None and (ROOT / "bench" / header).exists():
                    target = "bench"
                if target is None:
                    problems.append(f"{file}: cannot tell whose header \"{header}\" is")
                    continue
                if target == folder or (is_test and target == "tests"):
                    continue
            else:
                target = group_of(header, groups)
                if target is None:
                    continue
            if target not in allowed:
                problems.append(f"{file}: may not include {header} ({target})")
            elif not is_test or target in rules[folder]:
                used[folder].add(target)
                if is_test and target in rules.get("tests", []):
                    used["tests"].add(target)
            else:
                used["tests"].add(target)
    for folder, allowed in rules.items():
        for name in allowed:
            if name not in used[folder]:
                problems.append(f"tools/layers.txt: {folder} is allowed {name} and does not use it")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"layers: {checked} files checked, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
