#!/usr/bin/env python3
"""What extents cost in hits: tools/extent_hit_rate.py TRACE.jsonl

TRACE has a request a line with "hash_ids", the names of its 512-token blocks (the public Mooncake traces). A store that keeps
everything is asked for each prompt in turn: by blocks, by extents of E blocks of 64 tokens, and by extents with the tails of
chains as single blocks. Prints the share of prompt blocks that are hits, in percent.
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
    print("|  E | extents only | with tails | lost |\n|---|---|---|---|")
    for per_extent in (8, 16, 32, 64):
        size = per_extent // BLOCKS
        extents, tails, whole, more = set(), set(), 0, 0
        for ids in prompts:
            end = 0
            while end + size <= len(ids) and ids[end + size - 1] in extents:
                end += size
            whole += end
            while end < len(ids) and ids[end] in tails:
                end += 1
            more += end
            last = len(ids) // size * size
            extents.update(ids[i] for i in range(size - 1, last, size))
            tails.update(ids[last:])
        print(f"| {per_extent} | {100 * whole / total:.2f} % | {100 * more / total:.2f} % "
              f"| {100 * (hits - more) / total:.2f} points |")


if __name__ == "__main__":
    main()
