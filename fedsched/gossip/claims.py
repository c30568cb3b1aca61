"""The rules of belief: which claim about a member wins, and what follows.

A higher incarnation beats a lower one; at the same one *dead* and *left* beat *suspect*, and that beats *alive*. Only
the member itself raises its incarnation, so only it can take back what others say of it.

Where this departs from the usual rules:

 - Evidence with a higher incarnation that changes no state still raises the stored one: `dead@1, dead@10, alive@2` must
   not revive anybody.
 - A stale *alive* about somebody held as dead is answered with the accusation. A member that restarted with a low
   incarnation would otherwise never learn that there is something to refute.
 - A failed member may become one that left (`ForceLeave`), never the other way round.
 - Whoever hears of a suspicion may look for itself at once (`second_opinions`).
"""

from __future__ import annotations

from fedsched.gossip.asked import NewsKind
from fedsched.gossip.foundation import Foundation, Timer
from fedsched.gossip.members import Member, id_of, versions_are_sound
from fedsched.gossip.messages import Alive, Dead, Message, NameTaken, State, Suspect
from fedsched.gossip.suspicion import Suspicion

ECHO_EVERY_S = 1.0
CONFLICT_EVERY_S = 30.0


class Claims(Foundation):
    """Believing and disbelieving."""

    def _set_up_claims(self) -> None:
        self._suspicions: dict[str, tuple[Suspicion, Timer]] = {}
        self._echoed: dict[str, float] = {}
        self._conflicts: dict[str, float] = {}

    def _second_opinion(self, member: Member) -> None:
        raise NotImplementedError

    def _is_failed_region(self, region: str) -> bool:
        raise NotImplementedError

    def _region_is_back(self, region: str) -> None:
        raise NotImplementedError

    def _watch_failed(self) -> None:
        raise NotImplementedError

    # -------------------------------------------------------------------- alive

    def _on_alive(self, claim: Alive) -> None:
        if claim.node == self.name:
            self._on_alive_me(claim)
            return
        old = self.members.get(claim.node)
        if old is not None and claim.inc <= old.inc:
            if not old.is_up or (old.state is State.SUSPECT and claim.addr == old.addr):
                self._echo(old, claim)
            elif claim.addr != old.addr and id_of(claim.meta) != old.id:
                self._conflict(old, claim)
            return
        if not versions_are_sound(claim.versions):
            self._warn("gossip_bad_versions", claim.node)
            return
        if old is not None and claim.addr != old.addr and not self._may_move(old, claim):
            self._conflict(old, claim)
            return
        self._believe(old, claim)

    def _believe(self, old: Member | None, claim: Alive) -> None:
        was_up = old is not None and old.is_up
        changed_at = old.changed_at if old is not None and old.state is State.ALIVE else self.now
        if old is None:
            self._retire_old_name(claim)
        self._end_suspicion(claim.node)
        member = Member(claim.node, claim.addr, claim.inc, State.ALIVE, claim.meta, claim.versions, changed_at)
        region_was_gone = not was_up and old is not None and self._is_failed_region(member.region)
        self._put(member)
        self._tell(claim)
        if not was_up:
            self._news(NewsKind.JOIN, member)
            if region_was_gone:
                self._region_is_back(member.region)
        elif old is not None and (old.meta != claim.meta or old.addr != claim.addr):
            self._news(NewsKind.UPDATE, member)

    def _on_alive_me(self, claim: Alive) -> None:
        """Somebody repeats what we said, or what a former self or a namesake said."""
        own = self.me
        if self.is_leaving or claim.inc < own.inc:
            return
        if claim.addr != own.addr and id_of(claim.meta) != own.id:
            self._note_conflict(claim.node, f"{claim.node} is also at {claim.addr[0]}:{claim.addr[1]}")
            return
        if claim != own.claim():
            self._refute(claim.inc)

    def _may_move(self, old: Member, claim: Alive) -> bool:
        """May this name have another address? The incarnation is higher already."""
        if old.state is State.LEFT or (old.id and old.id == id_of(claim.meta)):
            return True
        return old.state is State.DEAD and self.now - old.changed_at >= self.profile.reclaim_s

    def _conflict(self, old: Member, claim: Alive) -> None:
        if self._note_conflict(claim.node, f"{claim.node}: {old.addr} keeps the name, {claim.addr} wants it"):
            self._send(claim.addr, NameTaken(old.name, old.addr, old.id))

    def _note_conflict(self, name: str, about: str) -> bool:
        if self.now - self._conflicts.get(name, -CONFLICT_EVERY_S) < CONFLICT_EVERY_S:
            return False
        self._conflicts[name] = self.now
        self._warn("gossip_name_conflict", about)
        return True

    def _on_name_taken(self, message: NameTaken) -> None:
        if message.node == self.name and message.addr != self.addr:
            host, port = message.addr
            self._note_conflict(f"/{self.name}", f"name taken by {host}:{port}, id {message.id}")

    def _retire_old_name(self, claim: Alive) -> None:
        """A server that was renamed: its old name has left."""
        former = self.members.name_with_id(id_of(claim.meta))
        if former is None or former in (claim.node, self.name):
            return
        old = self.members.get(former)
        if old is not None and old.is_up and old.addr == claim.addr:
            self._on_dead(Dead(old.inc, former, former))

    def _echo(self, old: Member, claim: Alive) -> None:
        if self.now - self._echoed.get(old.name, -ECHO_EVERY_S) >= ECHO_EVERY_S:
            self._echoed[old.name] = self.now
            self._send(claim.addr, *self._notice_to(old))

    # ------------------------------------------------------------------ suspect

    def _on_suspect(self, claim: Suspect) -> None:
        old = self.members.get(claim.node)
        if old is None or claim.inc < old.inc:
            return
        if claim.node == self.name:
            if not self.is_leaving:
                self._refute(claim.inc)
            return
        if not old.is_up:
            self._raise_inc(old, claim.inc)
            return
        running = self._suspicions.get(claim.node)
        if running is not None:
            self._raise_inc(old, claim.inc)
            if running[0].confirm(claim.by):
                self._tell(claim)
                self._watch(claim.node, running[0], running[1])
            return
        member = old._replace(inc=claim.inc, state=State.SUSPECT, changed_at=self.now)
        self._put(member)
        self._tell(claim)
        self.counters["suspicions"] += 1
        count = self.members.up
        bounds = self.profile.suspicion_bounds_s(count)
        wanted = self.profile.confirmations_wanted(count)
        self._watch(claim.node, Suspicion(claim.inc, claim.by, self.now, bounds, wanted), None)
        if claim.by != self.name and self.chance.random() * count < self.profile.second_opinions:
            self._second_opinion(member)

    def _watch(self, name: str, suspicion: Suspicion, old_timer: Timer | None) -> None:
        """(Re)set the end of a suspicion."""
        if old_timer is not None:
            old_timer.call = None
        due = max(self.now, suspicion.ends_at(self._within_reach(name)))
        self._suspicions[name] = (suspicion, self._at(due, self._suspicion_over, (name, suspicion)))

    def _suspicion_over(self, which: tuple[str, Suspicion]) -> None:
        name, suspicion = which
        running = self._suspicions.get(name)
        member = self.members.get(name)
        if running is None or running[0] is not suspicion or member is None or member.state is not State.SUSPECT:
            return
        if suspicion.ends_at(self._within_reach(name)) > self.now:
            self._watch(name, suspicion, None)
        elif self.awareness.lagged_at >= self.now:
            # We were away ourselves: what was to be refuted may lie unread in front of us.
            self._suspicions[name] = (
                suspicion,
                self._after(self.profile.probe_interval_s, self._suspicion_over, which),
            )
        else:
            self.counters["deaths_declared"] += 1
            self._on_dead(Dead(member.inc, name, self.name))

    def _end_suspicion(self, name: str) -> None:
        running = self._suspicions.pop(name, None)
        if running is not None:
            running[1].call = None

    def _raise_inc(self, old: Member, inc: int) -> None:
        if inc > old.inc:
            self._put(old._replace(inc=inc))

    # --------------------------------------------------------------------- dead

    def _on_dead(self, claim: Dead) -> None:
        old = self.members.get(claim.node)
        if old is None or claim.inc < old.inc:
            return
        is_farewell = claim.by == claim.node
        if claim.node == self.name:
            if not self.is_leaving:
                self._refute(claim.inc)
            return
        self._end_suspicion(claim.node)
        if not old.is_up and not (is_farewell and old.state is State.DEAD):
            self._raise_inc(old, claim.inc)
            return
        state = State.LEFT if is_farewell else State.DEAD
        member = old._replace(inc=claim.inc, state=state, changed_at=self.now)
        self._put(member)
        self._tell(claim)
        self._news(NewsKind.LEAVE if is_farewell else NewsKind.FAILED, member)
        if not is_farewell:
            self._watch_failed()

    # ----------------------------------------------------------------- ourselves

    def _refute(self, inc: int) -> None:
        """Take back what is said of us, and answer whoever said it."""
        self.counters["refutations"] += 1
        self.awareness.change(+1)
        self._speak_up(inc)
        if self._source is not None:
            self._send(self._source)

    def _notice_to(self, member: Member) -> tuple[Message, ...]:
        if member.state is State.SUSPECT:
            return (Suspect(member.inc, member.name, self.name),)
        if member.state is State.DEAD:
            return (Dead(member.inc, member.name, self.name),)
        if member.state is State.LEFT:
            return (Dead(member.inc, member.name, member.name),)
        return ()
