"""Three servers, and Hypothesis decides what happens next: small counter-examples, shrunk to a handful of steps.

Time plays no part here. Whatever is due (a tick, a message, a sync, a report) may be picked in any order, lost,
repeated or delayed for ever, except where the order is a promise of the disk itself.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from fedsched.raft.following import Following
from fedsched.raft.ground import Ground
from fedsched.raft.messages import AppendReply
from fedsched.sim.checkers import Checkers
from fedsched.sim.cores import CRASH_POINTS
from fedsched.sim.machine import Command, RegisterMachine
from fedsched.sim.options import Options
from fedsched.sim.region import Region
from fedsched.sim.schedule import Action
from fedsched.sim.verdict import Broken
from fedsched.sim.workloads import Users
from fedsched.sim.world import Event, World

SLOTS = st.integers(0, 2)
PICKS = st.integers(0, 40)
IN_ORDER = ("stored", "file", "filed")
"""Reports of a disk and the steps of a file come in the order in which they were asked for."""


class ThreeServers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        options = Options(servers=3, election_ticks=2, heartbeat_ticks=1, clients=1, keys=1, keep_unsynced=0.5)
        self.world = World(1)
        self.checkers = Checkers(lambda server_id: self.region.find(server_id))
        self.region = Region(self.world, options, self.checkers, RegisterMachine)
        self.users = Users(self.region, self.checkers, Command.encode)
        self.world.after_event = self.checkers.after_event
        self.region.bootstrap()
        self.tick(slot=0, times=6)
        self.go_on(count=60)
        assert self.region.leader() is self.region.at(0)

    # --- what may happen next -----------------------------------------------------------------------------------------

    def _due(self, *kinds: str) -> list[Event]:
        """Everything of these kinds (or but ticks) that may happen now."""
        found, seen = [], set()
        for event in self.world.due():
            key = (event.owner.id if event.owner is not None else event.detail, event.kind)
            if event.kind in IN_ORDER:
                if key in seen:
                    continue
                seen.add(key)
            if event.kind in kinds or (not kinds and event.kind != "tick"):
                found.append(event)
        return found

    def _message(self, pick: int) -> Event | None:
        messages = self._due("message")
        return messages[pick % len(messages)] if messages else None

    @rule(slot=SLOTS, times=st.integers(1, 5))
    def tick(self, slot: int, times: int) -> None:
        for _ in range(times):
            for event in self._due("tick"):
                if event.owner is self.region.at(slot):
                    self.world.happen(event)
                    break

    @rule(pick=PICKS)
    def happen(self, pick: int) -> None:
        due = self._due()
        if due:
            self.world.happen(due[pick % len(due)])

    @rule(count=st.integers(2, 12))
    def go_on(self, count: int) -> None:
        """Let what is oldest happen, as on a quiet day."""
        for _ in range(count):
            due = self._due()
            if due:
                self.world.happen(due[0])

    @rule(pick=PICKS)
    def lose(self, pick: int) -> None:
        event = self._message(pick)
        if event is not None:
            event.is_off = True

    @rule(pick=PICKS)
    def repeat(self, pick: int) -> None:
        event = self._message(pick)
        if event is not None:
            self.world.after(1, event.owner, "message", event.call, *event.args, detail=event.detail, outlives=True)

    @rule(slot=SLOTS, point=st.sampled_from(("", *CRASH_POINTS)))
    def crash(self, slot: int, point: str) -> None:
        server = self.region.at(slot)
        assert server is not None
        if point:
            server.crash_at = point
        else:
            server.crash()

    @rule(slot=SLOTS)
    def start(self, slot: int) -> None:
        server = self.region.at(slot)
        assert server is not None
        server.start()

    @rule(slot=SLOTS, count=st.integers(1, 3))
    def propose(self, slot: int, count: int) -> None:
        self._wish("burst", slot=slot, count=count)

    @precondition(lambda self: self.region.leaders())
    @rule(slot=SLOTS)
    def transfer(self, slot: int) -> None:
        self._wish("transfer", to=slot)

    @rule(slot=SLOTS, keep=st.sampled_from((0, 1)))
    def snapshot(self, slot: int, keep: int) -> None:
        self._wish("snapshot", slot=slot, keep=keep)

    @rule(slot=SLOTS)
    def read(self, slot: int) -> None:
        self._wish("operation", client=0, op="get", key="k0", slot=slot, size=0)

    @precondition(lambda self: self.region.leaders())
    @rule(what=st.sampled_from(("demote", "promote", "remove", "add")), pick=PICKS)
    def change_members(self, what: str, pick: int) -> None:
        self._wish("config", what=what, pick=2 * pick + 1, is_checked=False, any_leader=True)

    @rule(slot=SLOTS)
    def elect(self, slot: int) -> None:
        """A server's clock runs ahead until it campaigns, and the others answer at once."""
        self.tick(slot=slot, times=6)
        self.go_on(count=12)

    def _wish(self, kind: str, **args: Any) -> None:
        self.users.carry_out(Action(0, kind, args))
        for server in self.region.members():
            self.checkers.after_event(server)


ThreeServers.TestCase.settings = settings(max_examples=50, stateful_step_count=50)
test_three_servers_hold_every_invariant_whatever_happens_next = ThreeServers.TestCase


def _acknowledge_early(self: Following, leader: str, index: int) -> None:
    self._send(AppendReply(sender=self.server_id, to=leader, term=self.term, ok=True, index=index))


def _apply_early(self: Ground) -> int:
    """Whatever is committed may be applied, durable here or not."""
    safe = self.commit if self.commit > self._passed_on else 0
    self._passed_on = max(self._passed_on, self.commit)
    return safe


@pytest.mark.parametrize(
    ("owner", "name", "bug", "invariant"),
    [
        (Following, "_acknowledge", _acknowledge_early, "promises_kept"),
        (Ground, "_newly_safe", _apply_early, "durable_first"),
    ],
)
def test_a_planted_bug_is_found_within_the_same_budget(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Any, invariant: str
) -> None:
    monkeypatch.setattr(owner, name, bug)

    with pytest.raises(Broken) as found:
        run_state_machine_as_test(
            ThreeServers,
            settings=settings(max_examples=60, stateful_step_count=50, phases=[Phase.generate]),
        )

    assert found.value.invariant == invariant
