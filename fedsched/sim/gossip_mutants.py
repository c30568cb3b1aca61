"""Cores with one bug each, planted to see whether the simulated pools notice."""

from __future__ import annotations

from typing import Any, Final

from fedsched.gossip.asked import Effect, EventNews, KeepIncarnation
from fedsched.gossip.core import GossipCore
from fedsched.gossip.messages import Address, Alive, State, Suspect, UserEvent
from fedsched.sim.gossip_run import run_seed
from fedsched.sim.gossip_world import WorldBroken


class NeverRefutes(GossipCore):
    """Hears that it is dead, and says nothing."""

    def _refute(self, inc: int) -> None:
        pass


class NeverWritesDown(GossipCore):
    """Raises its incarnation without keeping it."""

    def _take(self) -> list[Effect]:
        return [effect for effect in super()._take() if type(effect) is not KeepIncarnation]


class BelievesOldNews(GossipCore):
    """Takes a claim of the same incarnation for a sign of life."""

    def _on_alive(self, claim: Alive) -> None:
        old = self.members.get(claim.node)
        if old is not None and old.state is State.DEAD and claim.inc == old.inc:
            self._believe(old, claim)
        else:
            super()._on_alive(claim)


class ComparesNothing(GossipCore):
    """Leaves it to gossip alone that everybody knows everything."""

    def _note_digest(self, name: str, addr: Address, digest: int) -> None:
        pass

    def _compare(self, addr: Address) -> None:
        self._exchange_op = None


class SpeaksForOthers(GossipCore):
    """Raises somebody else's incarnation to make its accusation stick."""

    def _on_suspect(self, claim: Suspect) -> None:
        if claim.by == self.name:
            claim = claim._replace(inc=claim.inc + 1)
        super()._on_suspect(claim)


class SuspectsForEver(GossipCore):
    """Never comes to a conclusion."""

    def _suspicion_over(self, which: Any) -> None:
        pass


class RepeatsItself(GossipCore):
    """Delivers an announcement every time it is heard."""

    def _on_event(self, event: UserEvent) -> None:
        if self.events.receive(event):
            self._tell(event)
        self._out.append(EventNews(event))


MUTANTS: Final[dict[str, type[GossipCore]]] = {
    cls.__name__: cls
    for cls in (
        NeverRefutes,
        NeverWritesDown,
        BelievesOldNews,
        ComparesNothing,
        SpeaksForOthers,
        SuspectsForEver,
        RepeatsItself,
    )
}


def noticed_at(name: str, first: int, count: int) -> int | None:
    """The first seed of these whose world the planted bug breaks; None if all of them put up with it."""
    for seed in range(first, first + count):
        try:
            run_seed(seed, make_core=MUTANTS[name])
        except WorldBroken:
            return seed
    return None
