"""The probe cycle, as prober, target and helper."""

from __future__ import annotations

from fedsched.gossip.asked import OpenStream, SendFailed, StreamAnswered, Warn
from fedsched.gossip.core import GossipCore
from fedsched.gossip.messages import Ack, Dead, Nack, Ping, PingReq, State, Suspect
from tests.gossip.kit import a_core, addr, hear, live, of_kind, said, state


def first_ping(core: GossipCore) -> tuple[Ping, float]:
    """Live until the first probe begins."""
    effects = []
    while not said(effects, Ping):
        effects = core.wake(core.wake_at())
    return said(effects, Ping)[0], core.now


def test_an_answer_in_time_ends_the_probe() -> None:
    core = a_core("a")
    ping, at = first_ping(core)

    hear(core, Ack(ping.seq, core.members.digest), now=at + 0.1)

    assert not said(live(core, at + 0.9), PingReq)
    assert state(core, "a") is State.ALIVE


def test_without_an_answer_others_are_asked_and_a_stream_is_tried_at_the_same_moment() -> None:
    core = a_core("a", "b", "c", "d")
    _, at = first_ping(core)

    effects = live(core, at + 0.31)

    assert len(said(effects, PingReq)) == 3
    streams = of_kind(effects, OpenStream)
    assert len(streams) == 1
    assert isinstance(streams[0].messages[0], Ping)


def test_nobody_answers_so_the_target_is_suspected_and_missing_nacks_count_against_us() -> None:
    core = a_core("a", "b", "c", "d")
    ping, at = first_ping(core)
    live(core, at + 0.35)
    hear(core, Nack(ping.seq), now=at + 0.4)

    live(core, at + 1.0)

    assert state(core, ping.target) is State.SUSPECT
    assert core.awareness.score == 2


def test_a_target_that_only_streams_reach_is_alive_and_the_log_says_so() -> None:
    core = a_core("a")
    warnings: list[Warn] = []
    for _ in range(3):
        _, at = first_ping(core)
        (stream,) = of_kind(live(core, at + 0.31), OpenStream)
        seq = stream.messages[0].seq  # type: ignore[union-attr]
        warnings += of_kind(core.handle(StreamAnswered(stream.op, (Ack(seq, 0),)), at + 0.4), Warn)

    assert state(core, "a") is State.ALIVE
    assert [warning.code for warning in warnings] == ["gossip_udp_blocked"]


def test_a_probe_that_could_not_be_sent_is_nobodys_fault() -> None:
    core = a_core("a")
    _, at = first_ping(core)

    core.handle(SendFailed(addr(2)), at)
    live(core, at + 0.99)

    assert state(core, "a") is State.ALIVE
    assert core.awareness.score == 0


def test_a_prober_that_was_late_itself_accuses_nobody() -> None:
    core = a_core("a")
    _, at = first_ping(core)

    core.wake(at + 5.0)

    assert state(core, "a") is State.ALIVE
    assert core.counters["probes_discarded"] == 1
    assert core.awareness.score == 1


def test_a_ping_for_another_name_is_not_answered() -> None:
    core = a_core("a")

    assert said(hear(core, Ping(1, "somebody", "a", addr(2), 0)), Ack) == []
    assert [ack.seq for ack in said(hear(core, Ping(2, "me", "a", addr(2), 0)), Ack)] == [2]


def test_the_accused_hears_of_it_with_the_answer_to_its_ping() -> None:
    core = a_core("a", "b")
    hear(core, Dead(1, "a", "b"))

    effects = hear(core, Ping(1, "me", "a", addr(2), 0))

    assert Dead(1, "a", "me") in said(effects, Dead, to=addr(2))


def test_a_suspect_hears_of_it_with_the_ping() -> None:
    core = a_core("a")
    hear(core, Suspect(1, "a", "x"))
    effects = []
    while not said(effects, Ping):
        effects = core.wake(core.wake_at())

    assert Suspect(1, "a", "me") in said(effects, Suspect, to=addr(2))


def test_a_helper_passes_the_answer_on() -> None:
    core = a_core("a", "b")
    (ping,) = said(hear(core, PingReq(77, "b", addr(3), "a", addr(2), 700), now=1.0), Ping)

    effects = hear(core, Ack(ping.seq, 5), now=1.1, source=3)

    assert said(effects, Ack, to=addr(2)) == [Ack(77, 5)]


def test_a_helper_that_hears_nothing_says_so_within_the_probers_time() -> None:
    core = a_core("a", "b")
    hear(core, PingReq(77, "b", addr(3), "a", addr(2), 700), now=0.0)

    assert Nack(77) in said(live(core, 0.6), Nack, to=addr(2))


def test_everybody_is_probed_in_every_round_and_the_neighbour_every_third_time() -> None:
    names = [f"n{number}" for number in range(10)]
    core = a_core(*names)
    probed: list[str] = []
    for _ in range(30):
        ping, at = first_ping(core)
        probed.append(ping.target)
        hear(core, Ack(ping.seq, core.members.digest), now=at + 0.01)

    assert set(probed) == set(names)
    neighbour = core.members.next_on_ring("me")
    assert neighbour is not None
    assert {probed[at] for at in range(2, 30, 3)} == {neighbour.name}
