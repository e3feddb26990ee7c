"""Which edges of docs/protocol/handoff.md the P/D fault suite must reach.

All fault edges, but for those below, which the processes as they are can't take; the model test
(src/service/handoff/handoff_model_test.cc), where engines call in any order, covers them.
"""

HITS_MIN = 20

WITHDRAWN_AFTER_CLOSE = "an engine forgets a leg when it closes it, and ids are not drawn twice"

UNREACHABLE = {
    "owner.complete.withdraw": WITHDRAWN_AFTER_CLOSE,
    "owner.complete.withdraw_held": WITHDRAWN_AFTER_CLOSE,
}


def check_names(edges):
    names = {name for name, fault in edges if fault}
    strangers = sorted(set(UNREACHABLE) - names)
    assert not strangers, f"no fault edges of docs/protocol/handoff.md: {strangers}"


def rare(edges, counts):
    """The fault edges that were taken too rarely."""
    return [name for (name, fault), count in zip(edges, counts)
            if fault and count < HITS_MIN and name not in UNREACHABLE]


class Gains:
    """What each plan of faults is good for: the edges that were taken while it was on."""

    def __init__(self, hits):
        self.hits = hits
        self.of = {}  # (phase, number of the plan) -> [turns, hits of each edge]

    def now(self):
        return list(self.hits.counts)

    def note(self, plan, before):
        turns, gained = self.of.get(plan, (0, [0] * len(before)))
        fresh = [new - old for new, old in zip(self.hits.counts, before)]
        self.of[plan] = (turns + 1, [a + b for a, b in zip(gained, fresh)])

    def worth(self, plan):
        """Hits of edges that are still rare, to be expected of another turn; infinite before the
        first."""
        if plan not in self.of:
            return float("inf")
        turns, gained = self.of[plan]
        wanted = 0.0
        for (name, fault), have, amount in zip(self.hits.edges, self.hits.counts, gained):
            if fault and have < HITS_MIN and name not in UNREACHABLE:
                # The first hits of an edge count for more than the last.
                wanted += min(HITS_MIN - have, amount / turns) * (1 + (HITS_MIN - have) / HITS_MIN)
        return wanted

    def best(self, phase, plans, turn):
        """The number of the plan for the next turn; in their order when none stands out."""
        worth = [self.worth((phase, i)) for i in range(plans)]
        return max(range(plans), key=lambda i: (worth[i], -((i - turn) % plans)))


def show(edges, counts):
    """Prints the table; rare()."""
    check_names(edges)
    too_rare = rare(edges, counts)
    print("edge" + " " * 38 + "hits")
    for (name, fault), count in zip(edges, counts):
        notes = ["fault"] * fault + ["rare"] * (name in too_rare)
        if name in UNREACHABLE:
            notes.append(UNREACHABLE[name])
        print(f"{name:40}{count:7}  {', '.join(notes)}".rstrip())
    return too_rare
