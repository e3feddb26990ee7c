"""The phases with test workers: broken transports, broken streams to the gateway, stalls, limits.

Each phase takes turns between plans of faults, a few seconds each (faulty_transport.h, pd_proxy.py
say what the names mean), so that states that last are left in every way: each plan once, then those
that reached most of the edges that are still rare. The handoff's times are
short, so that its deadlines pass often.
"""
import os

import pd_service
from pd_phases import Phase

# Milliseconds; names as in docs/protocol/handoff.md.
SHORT = {"owner.unclaimed": 1200, "owner.quarantine": 600, "owner.heartbeat": 300,
         "owner.parked": 800, "reader.connect": 700, "reader.attach": 1500, "reader.read": 1000,
         "reader.silent": 1000, "reader.whole": 6000}


def mix(*parts, **chances):
    """Lines of a plan; chances are in a thousand, with `_` for the point and times after it."""
    lines = [line for part in parts for line in part]
    for name, chance in chances.items():
        permille, most = chance if isinstance(chance, tuple) else (chance, 0)
        lines.append(f"{name.replace('_', '.')} {int(permille * 1000)} {most}")
    return lines


FRAMES = mix(frame_delay=(20, 300), frame_cut=0.3, frame_lost=(0.1, 3000))
READS = mix(read_corrupt=20, read_ruin=3, read_stale=3, read_refuse=3, read_late=6,
            read_delay=(50, 300))
CUTS = mix(cut_tick=50, cut_message=10, cut_read=5, lost_hold=(500, 800), read_delay=(300, 200),
           attach_alter=150, attach_twice=100, connect_fail=100)
LOST = mix(attach_drop=100, attached_drop=100, renew_drop=300, renewed_drop=500, part_drop=20,
           closed_drop=200, ended_drop=300, release_drop=200, alive_drop=300, ack_drop=200)
LATE = mix(attach_hold=(300, 1400), attached_hold=(200, 1400), part_hold=(100, 800),
           closed_hold=(500, 1500), release_hold=(300, 800), read_delay=(100, 500))
NONSENSE = mix(alive_extra=200, attached_extra=10, part_extra=10, closed_extra=50, attach_extra=10,
               renewed_extra=150, renew_extra=30, attached_hold=(200, 600), part_hold=(100, 300),
               closed_hold=(800, 900), read_delay=(600, 500))
TWICE = mix(attach_alter=600, attach_twice=500, attach_hold=(800, 1000))
STRANGE = mix(attach_strange=(900, 900), read_delay=(500, 400))
STALLS = mix(stall=(18, 4000), closed_drop=300, read_delay=(100, 300))
SILENCE = mix(alive_drop=1000, attached_drop=1000, part_drop=1000, closed_drop=1000,
              renewed_drop=1000, ended_drop=1000)
CONNECTS = mix(connect_fail=400, cut_tick=150)
SLOW_CONNECTS = mix(connect_delay=(1000, 3000), cut_tick=25)
LEASES = mix(renew_drop=1000, closed_hold=(600, 1900), part_hold=(200, 1900), read_delay=(300, 900))
HOLDERS = mix(cut_tick=60, lost_hold=(1000, 2500), closed_drop=300, release_hold=(800, 700),
              read_delay=(300, 200))


class Parts(Phase):
    errors_max = 0.05
    tokens_max = 60  # it is about prompts
    leave = 0.3
    pools = "prefill=1,decode=1"
    cache = False
    limits = {}
    lease = 1.5
    plans = []

    def open(self):
        options = ["--handoff-lease", f"{self.lease}s", *self.flags]
        for name, value in {**SHORT, **self.limits}.items():
            options += ["--handoff-limit", f"{name}={value}{'ms' * (name in SHORT)}"]
        return pd_service.Parts(os.path.abspath(self.run.options.worker_binary), options,
                                pools=self.pools, transport=self.transport, cache=self.cache,
                                seed=self.rng.randrange(1 << 20))

    def faults(self, end):
        turns = 0
        going = True
        while going:
            number = self.run.gains.best(self.name, len(self.plans), turns)
            before = self.run.gains.now()
            self.service.plan(self.plans[number])
            turns += 1
            # Between plans all is well for a moment, so that states are entered.
            going = self.sleep(self.turn, end)
            self.service.plan([])
            going = going and self.sleep(0.3, end)
            self.run.gains.note((self.name, number), before)
        self.done["plans"] = turns


class Cuts(Parts):
    """Connections end at any moment, owners learn it late, and connecting again fails."""
    plans = [CUTS, CONNECTS, SLOW_CONNECTS, mix(CUTS, LATE)]
    limits = {"reader.reads_max": 4}
    prompts = (500, 4096)
    leave = 0.4
    clients = 10


class Holders(Parts):
    """Several readers may be reading when a handoff ends."""
    plans = [HOLDERS, mix(HOLDERS, read_refuse=30), mix(HOLDERS, read_ruin=20)]
    limits = {"reader.reads_max": 4}
    prompts = (900, 4096)
    leave = 0.7
    clients = 10


class Messages(Parts):
    """Messages are lost, late, twice, and nonsense."""
    plans = [LOST, NONSENSE, LATE, TWICE, LEASES, STRANGE]
    limits = {"reader.reads_max": 4}
    turn = 3.0
    clients = 14


class Closings(Parts):
    """All is read, and the close does not come."""
    # Lost rather than late: what is late keeps all that comes after it on the connection.
    plans = [mix(closed_drop=700, cut_tick=40), mix(closed_drop=700, stall=(20, 3500)),
             CONNECTS, SLOW_CONNECTS, mix(closed_drop=700, alive_extra=300, renewed_extra=200), mix(closed_drop=900),
             mix(closed_drop=700, renew_drop=800), mix(closed_drop=900, attach_strange=(900, 700))]
    limits = {"reader.whole": 2500, "reader.silent": 3000}
    prompts = (0, 400)
    leave = 0.5
    turn = 3.0


class Crowd(Parts):
    """Long prompts wait for their turn, with readers attached, and their clients leave."""
    plans = [mix(), CUTS, HOLDERS, mix(cut_tick=80, connect_delay=(1000, 650)),
             mix(HOLDERS, attach_strange=(500, 900)), LEASES]
    limits = {"reader.reads_max": 4, "reader.whole": 1500}
    prompts = (1500, 4096)
    leave = 0.8
    clients = 24


class Long(Parts):
    """Prompts are computed in many small steps, so that handoffs stay open."""
    plans = [STRANGE, mix(HOLDERS, attach_twice=500), mix(HOLDERS, read_refuse=30),
             mix(STRANGE, read_delay=(900, 900)), mix(read_delay=(900, 900)), HOLDERS]
    flags = ("--max-batch-tokens", "24")
    limits = {"reader.reads_max": 4, "reader.whole": 3500}
    prompts = (900, 4096)
    leave = 0.6
    clients = 10


class Stalls(Parts):
    """Threads of transports stand still, so that leases end with their readers alive."""
    plans = [STALLS, mix(STALLS, attach_hold=(300, 1000)), mix(STALLS, CUTS)]
    turn = 5.0
    limits = {"reader.reads_max": 4}
    prompts = (300, 4096)


class Silence(Parts):
    """Owners say nothing any more."""
    plans = [SILENCE, mix(closed_drop=1000), SILENCE, mix(read_delay=(900, 800)),
             mix(SILENCE, read_delay=(900, 800))]
    turn = 1.5
    lease = 4
    limits = {"reader.silent": 700, "reader.attach": 2500, "reader.reads_max": 4}


class Silences(Parts):
    """Owners of short prompts say nothing any more, when all has been read or while reads wait."""
    plans = [mix(alive_drop=1000, renewed_drop=1000, closed_drop=900),
             mix(alive_drop=1000, renewed_drop=1000, closed_drop=900, read_delay=(1000, 1500))]
    prompts = (0, 800)
    lease = 4
    limits = {"reader.silent": 700}


class Limits(Parts):
    """Few handoffs and pulls at once, and no time for a pull."""
    plans = [mix(read_delay=(300, 300), closed_hold=(900, 600)), mix(CUTS, LATE)]
    limits = {"owner.handoffs_max": 5, "pulls_max": 4, "reader.whole": 400, "reader.reads_max": 4}
    clients = 16


class Reads(Parts):
    """Reads end corrupt, stale, refused, late; the cache daemon is there."""
    plans = [READS, mix(READS, FRAMES)]
    cache = True


class Frames(Parts):
    """The streams between the gateway and its workers are late and break."""
    errors_max = 0.5
    leave = 0.05
    plans = [mix(frame_delay=(50, 500), frame_cut=2), mix(frame_lost=(0.5, 4000), frame_cut=1),
             mix(FRAMES, READS)]
    pools = "prefill=2,decode=2"


def over_tcp(kind):
    return type(f"{kind.__name__}Tcp", (kind,), {"transport": "tcp", "__doc__": kind.__doc__})


PARTS_PHASES = [Cuts, Holders, Messages, Closings, Crowd, Long, Stalls, Silence, Silences, Limits,
                Reads, Frames]
PARTS_PHASES += [over_tcp(kind) for kind in PARTS_PHASES]
SHORT_PARTS_PHASES = [over_tcp(Cuts), Messages, over_tcp(Reads)]
