"""Shares of the skills over training, and the held-out sets."""
import random
from dataclasses import replace

from . import skills, tools
from .skills import Level

SKILLS = {
    "recall": skills.recall, "not_told": skills.not_told, "memory": skills.memory, "add": skills.add,
    "sort": skills.sort, "count": skills.count, "copy": skills.copy, "json": skills.json_fields,
    "greet": skills.greet, "tool": tools.tool,
}
START = {"recall": 38, "copy": 27, "memory": 12, "add": 8, "sort": 4, "count": 3, "not_told": 2,
         "json": 4, "tool": 2, "greet": 2}
FINAL = {"recall": 24, "copy": 13, "memory": 7, "add": 16, "sort": 13, "count": 4, "not_told": 8,
         "json": 8, "tool": 4, "greet": 2}
LAST = {"recall": 25, "not_told": 9, "memory": 8, "add": 10, "sort": 24, "count": 6, "copy": 20, "json": 9,
        "greet": 2, "tool": 6}
FINISH = {"recall": 36, "not_told": 18, "memory": 6, "add": 6, "sort": 20, "count": 4, "copy": 15, "json": 7,
          "greet": 1, "tool": 6}


def draw(rng, shares, level):
    skill = rng.choices(list(shares), weights=shares.values())[0]
    return SKILLS[skill](rng, level)


# Held-out sets: skill -> (items, how to draw one).
def _plain(skill, **changes):
    return lambda rng: SKILLS[skill](rng, replace(Level(held_out=True), **changes))


def _long(low, high, tokens):
    def make(rng):
        level = Level(facts=(low, high), tokens=rng.randint(*tokens), held_out=True, value_only=0.0)
        return skills.recall(rng, level, "recall_4k", not_told=0.0)
    return make


HELD_OUT = {
    "recall": (100, lambda rng: skills.recall(rng, Level(facts=(1, 8), value_only=0.0),
                                              not_told=0.0)),
    "recall_value": (100, lambda rng: skills.recall(rng, Level(facts=(1, 8), value_only=1.0),
                                                    "recall_value", not_told=0.0)),
    "recall_4k": (40, _long(4, 8, (2800, 4150))),
    "not_told": (100, _plain("not_told")),
    "memory": (100, _plain("memory", questions=2)),
    "add": (100, _plain("add")), "sort": (100, _plain("sort")), "count": (100, _plain("count")),
    "copy": (100, _plain("copy")), "json": (100, _plain("json")), "greet": (100, _plain("greet")),
    "tool": (100, lambda rng: tools.tool(rng, Level(questions=2), last="call")),
    "tool_result": (100, lambda rng: tools.tool(rng, Level(questions=2), last="result")),
    "thinking": (100, lambda rng: draw(
        rng, {"add": 3, "recall": 3, "sort": 1, "count": 1, "memory": 1, "json": 1},
        Level(facts=(1, 4), thinking=1.0, held_out=True))),
}


def held_out(skill, seed=77_000_001):
    """The held-out conversations of a skill; their last message is the expected answer."""
    count, make = HELD_OUT[skill]
    rng = random.Random(f"{skill}/{seed}")
    items = []
    for _ in range(count):
        conversation = make(rng)
        conversation["skill"] = skill
        items.append(conversation)
    return items
