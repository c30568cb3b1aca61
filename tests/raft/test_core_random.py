"""Random schedules against the core: a quick net under the simulator, within reach of a unit test.

Messages are reordered, repeated and lost, disks stall, servers crash and come back, membership changes, snapshots are
cut at any moment. After every step: one leader per term, equal logs where they are applied, honest outcomes and reads.
"""

from __future__ import annotations

import random

import pytest

from fedsched.raft import rare
from fedsched.raft.membership import AddLearner, Demote, Promote, Remove, Replace
from fedsched.raft.messages import Accepted, Message
from fedsched.raft.settings import CoreSettings
from tests.raft.region import Disk, Region, a_server

SETTINGS = CoreSettings(
    heartbeat_ticks=2,
    election_ticks=8,
    message_bytes=120,
    window_messages=3,
    window_bytes=300,
    uncommitted_bytes=2_000,
    waiting_reads=3,
    flap_window_ticks=100,
)


class Storm:
    """One random life of a region, and what must hold in it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.region = Region("123", settings=SETTINGS, draw=self.chance.randrange)
        self.leaders: dict[int, str] = {}
        self.log: dict[int, tuple[int, bytes]] = {}
        self.proposed: dict[tuple[int, int], bytes] = {}
        self.lost: set[tuple[int, int]] = set()
        self.reads: dict[int, int] = {}
        self.next_id = 4
        self.count = 0

    def step(self) -> None:
        moves = [self.tick] * 30 + [self.deliver] * 60 + [self.propose] * 12 + [self.read] * 5 + [self.sync] * 10
        moves += [
            self.stall,
            self.drop,
            self.repeat,
            self.crash,
            self.restart,
            self.restart,
            self.cut,
            self.heal,
            self.heal,
        ]
        moves += [self.snapshot, self.fetch, self.fetch, self.change, self.change, self.transfer, self.unreachable]
        self.chance.choice(moves)()
        self.check()

    # -------------------------------------------------------------------- moves

    def anyone(self) -> str:
        up = [each.id for each in self.region.servers.values() if each.is_up]
        return self.chance.choice(up) if up else "1"

    def tick(self) -> None:
        self.region.tick(self.anyone(), self.chance.choice([1, 1, 2, 3]))

    def deliver(self) -> None:
        if self.region.wire:
            self.region.step(self.take(in_order=self.chance.random() < 0.8))

    def take(self, *, in_order: bool) -> Message:
        at = 0 if in_order else self.chance.randrange(len(self.region.wire))
        message = self.region.wire[at]
        del self.region.wire[at]
        return message

    def drop(self) -> None:
        for _ in range(self.chance.randrange(4)):
            if self.region.wire:
                self.take(in_order=False)

    def repeat(self) -> None:
        if self.region.wire:
            self.region.wire.append(self.chance.choice(self.region.wire))

    def propose(self) -> None:
        self.count += 1
        payloads = [f"{self.count}.{k}" for k in range(self.chance.choice([1, 1, 2, 5]))]
        answer = self.region.propose(self.anyone(), *payloads)
        if isinstance(answer, Accepted):
            for index, payload in enumerate(payloads, start=answer.first):
                self.proposed[index, answer.term] = payload.encode()

    def read(self) -> None:
        self.count += 1
        self.reads[self.count] = max(self.log, default=0)
        server_id = self.anyone()
        if self.region.servers[server_id].is_up:
            self.region.core(server_id).read_index(self.count)
            self.region.pump(server_id)

    def stall(self) -> None:
        self.region.servers[self.anyone()].disk.is_stalled = True

    def sync(self) -> None:
        server = self.region.servers[self.anyone()]
        if server.is_up and server.disk.is_stalled:
            server.disk.is_stalled = self.chance.random() < 0.5
            self.region.sync(server.id, self.chance.choice([1, 1, None]) if server.disk.is_stalled else None)

    def crash(self) -> None:
        if sum(server.is_up for server in self.region.servers.values()) > 1:
            self.region.crash(self.anyone())

    def restart(self) -> None:
        down = [each.id for each in self.region.servers.values() if not each.is_up]
        if down:
            self.region.restart(self.chance.choice(down))

    def cut(self) -> None:
        self.region.cut_link(self.anyone(), self.anyone())

    def heal(self) -> None:
        self.region.heal()

    def snapshot(self) -> None:
        server = self.region.servers[self.anyone()]
        if server.is_up and server.applied and not server.writes:
            first, last = server.core.status().first_index - 1, server.applied[-1].index
            self.region.snapshot(server.id, self.chance.randint(min(first, last), last))

    def fetch(self) -> None:
        server = self.region.servers[self.anyone()]
        if server.is_up and server.offered is not None:
            self.region.fetched(server.id, ok=self.chance.random() < 0.8)

    def change(self) -> None:
        server = self.region.servers[self.anyone()]
        config = server.core.config
        if not server.is_up or server.core.office is None:
            return
        voters, learners = sorted(config.voters), sorted(config.learners)
        options = [Remove(self.chance.choice(voters)), Demote(self.chance.choice(voters))] if len(voters) > 2 else []
        if learners:
            options += [Promote(learners[0]), Replace(self.chance.choice(voters), learners[-1]), Promote(learners[-1])]
        elif self.next_id < 9:
            self.region._start(str(self.next_id), Disk())
            options += [AddLearner(a_server(str(self.next_id)))]
            self.next_id += 1
        if options:
            server.core.propose_config(self.chance.choice(options))
            self.region.pump(server.id)

    def transfer(self) -> None:
        server_id = self.anyone()
        self.region.core(server_id).transfer_leadership(None)
        if self.region.servers[server_id].is_up:
            self.region.pump(server_id)

    def unreachable(self) -> None:
        self.region.core(self.anyone()).peer_unreachable(self.anyone())

    # ------------------------------------------------------------------- checks

    def check(self) -> None:
        for server in self.region.servers.values():
            assert not server.fatal, server.fatal
            status = server.core.status()
            if server.is_up and status.role == "leader":
                assert self.leaders.setdefault(status.term, server.id) == server.id, "two leaders in one term"
            assert status.applied <= status.durable <= status.last
            for entry in server.applied[-10:]:
                known = self.log.setdefault(entry.index, (entry.term, entry.payload))
                assert known == (entry.term, entry.payload), f"{server.id} applied something else at {entry.index}"
                assert (entry.index, entry.term) not in self.lost, "called lost, and yet applied"
        for line in self.region.story:
            match line.split():
                case [_, "lost", span, "of", "term", term]:
                    first, last = span.split("..")
                    self.lost |= {(index, int(term)) for index in range(int(first), int(last) + 1)}
                case [_, "read", ctx, "at", index]:
                    assert int(index) >= self.reads[int(ctx)], "a stale read was confirmed"
        self.region.story.clear()
        assert not {key for key in self.lost if key[0] in self.log and self.log[key[0]][0] == key[1]}

    def calm(self) -> None:
        """The weather clears: a leader is there soon, and everybody ends up with the same state."""
        self.region.heal()
        for server in list(self.region.servers.values()):
            if not server.is_up:
                self.region.restart(server.id)
            self.region.servers[server.id].disk.is_stalled = False
            self.region.sync(server.id)
        for _ in range(SETTINGS.election_ticks * 20):
            self.region.settle(1)
            for server in self.region.servers.values():
                if server.offered is not None:
                    self.region.fetched(server.id)
            self.check()
        leaders = [each for each in self.region.servers.values() if each.core.office is not None]
        assert len(leaders) == 1, "no leader in calm weather"
        leader = leaders[0]
        assert isinstance(self.region.propose(leader.id, "end"), Accepted)
        self.region.settle(SETTINGS.election_ticks)
        for server_id in leader.core.config.members:
            assert self.region.servers[server_id].applied[-1].payload == b"end", f"{server_id} did not catch up"


@pytest.mark.parametrize("block", range(10))
def test_nothing_breaks_in_a_storm(block: int) -> None:
    for seed in range(block * 5, block * 5 + 5):
        storm = Storm(seed)
        for _ in range(1_500):
            storm.step()
        storm.calm()


def test_storms_reach_the_rare_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    monkeypatch.setattr(rare, "sometimes", seen.add)

    for seed in range(100, 110):
        storm = Storm(seed)
        for _ in range(4_000):
            storm.step()

    assert len(seen) >= 28, f"only {sorted(seen)}"
    assert seen <= rare.NAMES
