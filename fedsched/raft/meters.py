"""How long things take in Raft, for operators. Declared once; observed by the runner, one observation per event."""

from __future__ import annotations

from typing import Final

from fedsched.telemetry.metrics import Registry, counter, histogram

COMMIT: Final = histogram("raft.commit", "from proposing an entry until it is applied on the leader")
READ: Final = histogram("raft.read_round", "from asking for a linearizable read until the state is new enough")
SYNC: Final = histogram("raft.sync", "one group commit of the log store")
LAG: Final = histogram("raft.loop_lag", "how late the event loop handled a tick")
ENDED: Final = counter("raft.proposals", "proposals of this leader by how they ended", labels=("outcome",))


class Meters:
    """The instruments of one runner."""

    def __init__(self, registry: Registry) -> None:
        self.commit = registry.histogram(COMMIT)
        self.read = registry.histogram(READ)
        self.sync = registry.histogram(SYNC)
        self.lag = registry.histogram(LAG)
        self.ended = registry.counters(ENDED)
