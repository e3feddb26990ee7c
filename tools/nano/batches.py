"""Packs generated conversations into training steps, by a curriculum over the progress in 0..1."""
from dataclasses import dataclass

import torch

from . import encoding, mix, skills
from .skills import Level

CONTEXT = 4096
ANSWER_WEIGHT, PROMPT_WEIGHT = 1.0, 1.0


@dataclass
class Stage:
    shares: dict
    made_up: float
    facts: tuple
    thinking: float
    many: float       # share of recall with 8-24 facts
    medium: float     # share of recall with a prompt of 300-1,000 tokens
    gaps: float       # share of recall, memory and tool conversations with gaps between positions
    long_every: int   # one long conversation every so many steps; 0: none
    long_tokens: tuple
    prompt: float     # share of prompt tokens whose loss counts: it teaches much at first, later it is mostly noise


# Training on from a checkpoint.
FINISH = Stage(mix.FINISH, 0.5, (1, 8), 0.5, 0.08, 0.02, 0.4, 2, (2000, 4150), 0.0)


def stage(progress):
    if progress < 0.06:
        return Stage(mix.START, 0.0, (1, 4), 0.0, 0.0, 0.0, 0.0, 0, (0, 0), 0.1)
    if progress < 0.15:
        return Stage(mix.START, 0.5, (1, 5), 0.03, 0.03, 0.0, 0.2, 0, (0, 0), 0.1)
    if progress < 0.35:
        return Stage(mix.FINAL, 0.5, (1, 8), 0.05, 0.08, 0.02, 0.4, 0, (0, 0), 0.1)
    if progress < 0.60:
        return Stage(mix.LAST, 0.5, (1, 8), 0.18, 0.08, 0.03, 0.4, 6, (1000, 4150), 0.02)
    return Stage(mix.LAST, 0.5, (1, 8), 0.45, 0.08, 0.02, 0.4, 3, (1500, 4150), 0.0)


def conversation(rng, now):
    """A short conversation of the stage."""
    skill = rng.choices(list(now.shares), weights=now.shares.values())[0]
    questions = {"recall": 10, "not_told": 10, "add": 8}.get(skill, 5)
    level = Level(made_up=now.made_up, questions=questions, facts=now.facts, thinking=now.thinking,
                  near=0.6)
    if skill in ("recall", "not_told"):
        chance = rng.random()
        if chance < now.many:
            level.facts = (8, 24)
        elif chance < now.many + now.medium:
            level.tokens = rng.randint(300, 1000)
    return mix.SKILLS[skill](rng, level)


def long_conversation(rng, now):
    facts = (4, 8) if rng.random() < 0.7 else (1, 12)
    level = Level(made_up=now.made_up, questions=12, facts=facts, thinking=0.03,
                  tokens=rng.randint(*now.long_tokens), near=0.6)
    return skills.recall(rng, level, not_told=0.2)


def skipped_positions(rng, kinds):
    """Positions with random gaps in the prompt, so that far distances occur in short rows."""
    length = len(kinds)
    room = CONTEXT - length
    positions = list(range(length))
    total = rng.randint(1, max(1, room)) if room > 0 else 0
    places = [i for i in range(1, length) if kinds[i] != encoding.ANSWER]
    if not total or not places:
        return positions
    cuts = sorted(rng.sample(places, min(len(places), rng.randint(1, 4))))
    gaps = [0] * length
    weights = [rng.random() for _ in cuts]
    for cut, weight in zip(cuts, weights):
        gaps[cut] = int(total * weight / sum(weights))
    shift = 0
    for i, gap in enumerate(gaps):
        shift += gap
        positions[i] += shift
    return positions


def pack(rows, multiple=256):
    """[(ids, kinds, positions)] -> (starts, ids, positions, groups), flat tokens padded to `multiple`.

    Rows of 128, 256 and 512 tokens hold several conversations, first fit; longer ones hold one each. Few
    row lengths and rounded counts keep the number of matrix shapes small (see model._Experts).
    """
    starts, at = [], 0
    for ids, _, _ in rows:
        starts.append(at)
        at += len(ids)
    bins = {}                                   # row length -> [[members, tokens used]]
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i][0])):
        n = len(rows[i][0])
        fits = [b for length in (512, 256, 128) for b in bins.get(length, []) if b[1] + n <= length]
        if fits:
            fits[0][0].append(i)
            fits[0][1] += n
        else:
            length = next((x for x in (128, 256, 512) if n <= x), -(-n // 256) * 256)
            bins.setdefault(length, []).append([[i], n])
    groups = []
    for length, lines in bins.items():
        index = torch.zeros(len(lines), length, dtype=torch.long)
        segments = torch.full((len(lines), length), -1, dtype=torch.long)
        for line, (members, _) in enumerate(lines):
            used = 0
            for i in members:
                n = len(rows[i][0])
                index[line, used:used + n] = torch.arange(starts[i], starts[i] + n)
                segments[line, used:used + n] = i
                used += n
        groups.append((index, segments))
    padding = [0] * (-at % multiple)
    ids = torch.tensor([t for r in rows for t in r[0]] + padding)
    positions = torch.tensor([p for r in rows for p in r[2]] + padding)
    return starts, ids, positions, groups


def step(rng, tokenizer, now, number, budget):
    """One training step of a stage: (ids, positions, groups, wanted, targets, weights)."""
    rows, total = [], 0
    if now.long_every and number % now.long_every == 0:
        ids, kinds = encoding.encode(tokenizer, long_conversation(rng, now), split=rng.random() < 0.2)
        ids, kinds = ids[:CONTEXT], kinds[:CONTEXT]
        positions = skipped_positions(rng, kinds) if rng.random() < 0.3 else list(range(len(ids)))
        rows.append((ids, kinds, positions))
        budget //= 3
    while total < budget:
        talk = conversation(rng, now)
        ids, kinds = encoding.encode(tokenizer, talk, split=rng.random() < 0.2,
                                     short_tools=rng.random() < 0.6)
        if len(ids) > CONTEXT:
            continue
        if total + len(ids) > budget and total > 0.9 * budget:
            break
        gaps = talk["skill"] in ("recall", "not_told", "memory", "tool") and rng.random() < now.gaps
        rows.append((ids, kinds, skipped_positions(rng, kinds) if gaps else list(range(len(ids)))))
        total += len(ids)
    starts, ids, positions, groups = pack(rows)
    wanted, weights = [], []
    for at, (row, kinds, _) in zip(starts, rows):
        for i in range(len(row) - 1):
            if kinds[i + 1] == encoding.ANSWER:
                wanted.append(at + i)
                weights.append(ANSWER_WEIGHT)
            elif kinds[i + 1] == encoding.PROMPT and len(row) < 1500 and rng.random() < now.prompt:
                wanted.append(at + i)
                weights.append(PROMPT_WEIGHT)
    padding = [0] * (-len(wanted) % 256)
    wanted = torch.tensor(wanted + padding)
    weights += padding
    return ids, positions, groups, wanted, ids[wanted + 1], torch.tensor(weights, dtype=torch.float)
