from __future__ import annotations

from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import Config
from fedsched.raft.messages import Append, Heartbeat, SnapshotMeta, SnapshotOffer
from fedsched.sim.net import CLOGGED_MAX, Network
from fedsched.sim.options import Options
from fedsched.sim.trace import describe
from fedsched.sim.world import World
from tests.sim.fakes import FakeOwner


def a_beat(number: int) -> Heartbeat:
    return Heartbeat(sender="a", to="b", term=number, commit=0, round=0)


class Wire:
    """Two servers and the network between them."""

    def __init__(self, seed: int = 1, **options: object) -> None:
        self.world = World(seed)
        self.b = FakeOwner("b")
        self.net = Network(self.world, Options(**options), lambda name: self.b if name == "b" else None)  # type: ignore[arg-type]

    def arrivals(self) -> list[int]:
        until_us = self.world.now + 60_000_000
        while self.world.step(until_us):
            pass
        return [message.term for message in self.b.received]


def test_messages_of_one_link_arrive_in_order_unless_told_otherwise() -> None:
    wire = Wire()
    for number in range(50):
        wire.net.send(a_beat(number))

    assert wire.arrivals() == list(range(50))


def test_reordering_dropping_and_duplicating_do_what_they_say() -> None:
    features = ("reorder", "drop", "duplicate", "delay")
    wire = Wire(features=features, reorder=0.5, drop=0.2, duplicate=0.2, far_delay=0.2, jitter_us=50_000)
    for number in range(200):
        wire.net.send(a_beat(number))

    arrived = wire.arrivals()

    assert arrived != sorted(arrived)
    assert len(set(arrived)) < 200
    assert len(arrived) > len(set(arrived))


def test_a_cut_link_takes_nothing_more_but_delivers_what_is_under_way() -> None:
    wire = Wire()
    wire.net.send(a_beat(1))
    wire.net.cut("a", "b")
    wire.net.send(a_beat(2))

    assert not wire.net.is_open("a", "b")
    assert wire.arrivals() == [1]


def test_a_cut_ends_by_itself_but_not_after_everything_was_healed_and_cut_anew() -> None:
    wire = Wire()
    wire.net.cut("a", "b", for_us=1_000_000)
    while wire.world.step(1_500_000):
        pass
    assert wire.net.is_open("a", "b")

    wire.net.cut("a", "b", for_us=1_000_000)
    wire.net.heal()
    wire.net.cut("a", "b")
    while wire.world.step(5_000_000):
        pass

    assert not wire.net.is_open("a", "b")


def test_a_broken_stream_delivers_a_prefix() -> None:
    wire = Wire()
    for number in range(10):
        wire.net.send(a_beat(number))

    assert wire.net.reset("a", "b", survivors=3) == 7
    assert wire.arrivals() == [0, 1, 2]


def test_a_clogged_link_bursts_later_and_holds_only_so_much() -> None:
    wire = Wire()
    wire.net.clog("a", "b")
    wire.net.clog("a", "b")
    for number in range(CLOGGED_MAX + 10):
        wire.net.send(a_beat(number))
    assert wire.arrivals() == []

    wire.net.unclog("a", "b")

    assert wire.arrivals() == list(range(CLOGGED_MAX))


def test_nobody_gets_what_is_sent_to_nobody() -> None:
    wire = Wire()

    wire.net.send(Heartbeat(sender="b", to="x", term=1, commit=0, round=0))

    assert wire.arrivals() == []


def test_messages_pass_through_the_real_codec_unharmed() -> None:
    wire = Wire(features=("codec",))
    message = Append(
        sender="a",
        to="b",
        term=2,
        prev_index=4,
        prev_term=1,
        commit=3,
        entries=(Entry(5, 2, EntryKind.COMMAND, b"payload"),),
    )
    wire.net.send(message)
    wire.arrivals()

    assert wire.b.received == [message]
    assert wire.b.received[0] is not message


def test_a_message_is_described_with_what_it_carries() -> None:
    meta = SnapshotMeta(id="s1", index=7, term=2, config=Config(), config_index=1)
    entries = (Entry(5, 2, EntryKind.COMMAND, b"x"),)

    assert "s1 7@2" in describe(SnapshotOffer(sender="a", to="b", term=3, meta=meta))
    assert "5@2" in describe(Append(sender="a", to="b", term=3, prev_index=4, prev_term=1, commit=0, entries=entries))
