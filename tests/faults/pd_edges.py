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
