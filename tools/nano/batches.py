"""Packs generated conversations into training steps, by a curriculum over the progress in 0..1."""
from dataclasses import dataclass

import torch

from . import encoding, mix, skills
from .skills import Level

CONTEXT = 4096
ANSWER_WEIGHT, PROMPT_WEIGHT, PROMPT_SHARE = 1.0, 0.5, 0.2


@dataclass
class Stage:
    shares: dict
    made_up: float
    facts: tuple
    thinking: float
    many: float       # share of recall with 8-24 facts
    medium: float     # share of recall with a prompt of 300-1,000 tokens
    long_every: int   # one long conversation every so many steps; 0: none
    long_tokens: tuple


def stage(progress):
    if progress < 0.05:
        return Stage(mix.START, 0.0, (1, 4), 0.0, 0.0, 0.0, 0, (0, 0))
    if progress < 0.10:
        return Stage(mix.START, 0.5, (1, 5), 0.03, 0.0, 0.0, 0, (0, 0))
    if progress < 0.30:
        return Stage(mix.FINAL, 0.5, (1, 8), 0.07, 0.10, 0.02, 0, (0, 0))
    if progress < 0.60:
        return Stage(mix.FINAL, 0.5, (1, 8), 0.07, 0.12, 0.03, 6, (800, 2000))
    return Stage(mix.FINAL, 0.5, (1, 8), 0.07, 0.10, 0.03, 3, (1000, 4150))


def conversation(rng, now):
    """A short conversation of the stage."""
    skill = rng.choices(list(now.shares), weights=now.shares.values())[0]
    questions = {"recall": 6, "not_told": 6, "add": 6, "tool": 8}.get(skill, 5)
    level = Level(made_up=now.made_up, questions=questions, facts=now.facts, thinking=now.thinking)
    if skill in ("recall", "not_told"):
        chance = rng.random()
        if chance < now.many:
            level.facts = (8, 24)
        elif chance < now.many + now.medium:
            level.tokens = rng.randint(300, 1000)
    return mix.SKILLS[skill](rng, level)


def long_conversation(rng, now):
    facts = (4, 8) if rng.random() < 0.7 else (1, 12)
    level = Level(made_up=now.made_up, questions=10, facts=facts, thinking=0.03,
                  tokens=rng.randint(*now.long_tokens))
    return skills.recall(rng, level, not_told=0.15)


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


def pack(rows):
    """rows: [(ids, kinds, positions)] -> (ids, positions, groups, wanted-candidates as flat tensors)."""
    rows = sorted(rows, key=lambda r: -len(r[0]))
    starts, at = [], 0
    for ids, _, _ in rows:
        starts.append(at)
        at += len(ids)
    groups, i = [], 0
    while i < len(rows):
        width = len(rows[i][0])
        members = []
        while i < len(rows) and len(rows[i][0]) >= 0.86 * width - 2 and len(members) * width < 16384:
            members.append(i)
            i += 1
        index = torch.empty(len(members), width, dtype=torch.long)
        for line, member in enumerate(members):
            n = len(rows[member][0])
            index[line, :n] = torch.arange(starts[member], starts[member] + n)
            index[line, n:] = starts[member]
        groups.append(index)
    ids = torch.tensor([t for r in rows for t in r[0]])
    positions = torch.tensor([p for r in rows for p in r[2]])
    return rows, ids, positions, groups


def step(rng, tokenizer, progress, number, budget):
    """One training step: (ids, positions, groups, wanted, targets, weights)."""
    now, rows, total = stage(progress), [], 0
    if now.long_every and number % now.long_every == 0:
        ids, kinds = encoding.encode(tokenizer, long_conversation(rng, now), split=rng.random() < 0.2)
        ids, kinds = ids[:CONTEXT], kinds[:CONTEXT]
        positions = skipped_positions(rng, kinds) if rng.random() < 0.3 else list(range(len(ids)))
        rows.append((ids, kinds, positions))
    while total < budget:
        talk = conversation(rng, now)
        ids, kinds = encoding.encode(tokenizer, talk, split=rng.random() < 0.2,
                                     short_tools=rng.random() < 0.6)
        if len(ids) > CONTEXT:
            continue
        gaps = talk["skill"] in ("recall", "not_told", "memory", "tool") and rng.random() < 0.5
        rows.append((ids, kinds, skipped_positions(rng, kinds) if gaps else list(range(len(ids)))))
        total += len(ids)
    rows, ids, positions, groups = pack(rows)
    wanted, weights, at = [], [], 0
    for row, kinds, _ in rows:
        for i in range(len(row) - 1):
            if kinds[i + 1] == encoding.ANSWER:
                wanted.append(at + i)
                weights.append(ANSWER_WEIGHT)
            elif kinds[i + 1] == encoding.PROMPT and len(row) < 1500 and rng.random() < PROMPT_SHARE:
                wanted.append(at + i)
                weights.append(PROMPT_WEIGHT)
        at += len(row)
    wanted = torch.tensor(wanted)
    return ids, positions, groups, wanted, ids[wanted + 1], torch.tensor(weights)
