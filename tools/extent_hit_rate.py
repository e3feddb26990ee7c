#!/usr/bin/env python3
"""What extents cost in hits: tools/extent_hit_rate.py TRACE.jsonl

TRACE has a request a line with "hash_ids", the names of its 512-token blocks (the public Mooncake traces). A store that keeps
everything is asked for each prompt in turn: by blocks, by extents of E blocks of 64 tokens, by extents with the tails of
chains as single blocks, and with the ends of shared prefixes as single blocks, too: a prefix is known to be shared when a
second prompt goes on otherwise. Prints the share of prompt blocks that are hits, in percent, and how many single blocks a
hundred blocks of new prompts are.
"""
import json
import sys

BLOCKS = 8  # of 64 tokens, in one of the trace's


def main():
    with open(sys.argv[1]) as trace:
        prompts = [json.loads(line)["hash_ids"] for line in trace]
    total = sum(len(ids) for ids in prompts)
    seen, hits = set(), 0
    for ids in prompts:
        hits += next((i for i, name in enumerate(ids) if name not in seen), len(ids))
        seen.update(ids)
    print(f"{len(prompts)} prompts, {total} blocks of 512 tokens; by blocks: {100 * hits / total:.2f} %")
    print("|  E | extents only | with tails | and shared ends | lost | singles |\n|---|---|---|---|---|---|")
    for per_extent in (8, 16, 32, 64):
        size = per_extent // BLOCKS
        extents, tails, ends, goes_on, seen = set(), set(), set(), set(), set()
        whole, with_tails, with_ends = 0, 0, 0
        for ids in prompts:
            end = 0
            while end + size <= len(ids) and ids[end + size - 1] in extents:
                end += size
            whole += end
            at = end
            while at < len(ids) and ids[at] in tails:
                at += 1
            with_tails += at
            while end < len(ids) and (ids[end] in tails or ids[end] in ends):
                end += 1
            with_ends += end
            held = next((i for i, name in enumerate(ids) if name not in seen), len(ids))
            if 0 < held < len(ids) and ids[held - 1] in goes_on:
                ends.update(ids[held // size * size:held])
            goes_on.update(ids[:-1])
            seen.update(ids)
            last = len(ids) // size * size
            extents.update(ids[i] for i in range(size - 1, last, size))
            tails.update(ids[last:])
        print(f"| {per_extent} | {100 * whole / total:.2f} % | {100 * with_tails / total:.2f} % "
              f"| {100 * with_ends / total:.2f} % | {100 * (hits - with_ends) / total:.2f} points "
              f"| {100 * len(tails | ends) / len(seen):.1f} |")


if __name__ == "__main__":
    main()
