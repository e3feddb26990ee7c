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


def show(edges, counts):
    """Prints the table; the fault edges that were taken too rarely."""
    check_names(edges)
    print("edge" + " " * 38 + "hits")
    rare = []
    for (name, fault), count in zip(edges, counts):
        note = "  fault" if fault else ""
        if name in UNREACHABLE:
            note += f", {UNREACHABLE[name]}"
        elif fault and count < HITS_MIN:
            rare.append(name)
            note += ", rare"
        print(f"{name:40}{count:7}{note}")
    return rare
