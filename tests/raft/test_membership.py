from __future__ import annotations

from dataclasses import replace

import pytest

from fedsched.codec.cbor import CodecError, dumps
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import (
    REMOVED_MAX,
    AddLearner,
    BadChange,
    Config,
    ConfigChange,
    ConfigHistory,
    Demote,
    Promote,
    Readdress,
    Remove,
    Removed,
    Replace,
    bootstrap_entry,
    changed,
    decode_config,
    encode_config,
    first_config,
    settled,
)
from tests.raft.region import a_config, a_server


@pytest.mark.parametrize(
    ("change", "joint", "final"),
    [
        (Promote("4"), a_config("1234", "5", outgoing="123"), a_config("1234", "5")),
        (Demote("3"), a_config("12", "345", outgoing="123"), a_config("12", "345")),
        (Remove("1"), a_config("23", "45", outgoing="123", removed="1"), a_config("23", "45", removed="1")),
        (Replace("1", "4"), a_config("234", "5", outgoing="123", removed="1"), a_config("234", "5", removed="1")),
    ],
)
def test_voters_change_through_a_joint_config(change: ConfigChange, joint: Config, final: Config) -> None:
    assert changed(a_config("123", "45"), change) == joint
    assert settled(joint) == final


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (AddLearner(a_server("5")), a_config("123", "45")),
        (Remove("4"), a_config("123", removed="4")),
    ],
)
def test_learners_come_and_go_in_one_step(change: ConfigChange, result: Config) -> None:
    assert changed(a_config("123", "4"), change) == result


def test_who_left_is_remembered_with_the_request_and_everything_after_keeps_that() -> None:
    config = changed(a_config("123", "45"), Remove("4", "request-a"))
    config = settled(changed(config, Replace("1", "5", "request-b")))
    config = settled(changed(config, Demote("2")))

    assert config.removed == (Removed(a_server("4"), "request-a"), Removed(a_server("1"), "request-b"))


def test_a_server_that_came_back_and_left_again_is_remembered_once() -> None:
    config = changed(a_config("1", "2", removed="23"), Remove("2", "again"))

    assert config.removed == (Removed(a_server("3")), Removed(a_server("2"), "again"))


def test_only_the_last_to_leave_are_remembered() -> None:
    config = a_config("1")
    for number in range(10, REMOVED_MAX + 13):
        config = changed(config, AddLearner(a_server(str(number))))
        config = changed(config, Remove(str(number)))

    assert [one.server.id for one in config.removed] == [str(number) for number in range(13, REMOVED_MAX + 13)]


def test_an_address_changes_without_a_vote() -> None:
    moved = replace(a_server("2"), address="10.0.0.2:4647")

    config = changed(a_config("123"), Readdress(moved))

    assert config.voters == frozenset("123")
    assert not config.is_joint
    assert config.server("2") == moved
    assert config.server("9") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (AddLearner(a_server("3")), "member already"),
        (Readdress(a_server("9")), "not a member"),
        (Promote("3"), "not a learner"),
        (Promote("9"), "not a learner"),
        (Demote("4"), "not a voter"),
        (Remove("9"), "not a member"),
        (Replace("4", "4"), "not a voter"),
        (Replace("1", "2"), "not a learner"),
    ],
)
def test_senseless_changes_are_refused_with_the_reason(change: ConfigChange, message: str) -> None:
    with pytest.raises(BadChange, match=message):
        changed(a_config("123", "4"), change)


@pytest.mark.parametrize("change", [Remove("1"), Demote("1")])
def test_the_last_voter_stays(change: ConfigChange) -> None:
    with pytest.raises(BadChange, match="without voters"):
        changed(a_config("1", "2"), change)


def test_no_change_on_top_of_a_joint_config() -> None:
    with pytest.raises(BadChange, match="under way"):
        changed(a_config("12", outgoing="123"), Promote("4"))


def test_every_server_bootstraps_with_the_same_bytes() -> None:
    forward = bootstrap_entry(first_config([a_server("1"), a_server("2")]))
    backward = bootstrap_entry(first_config([a_server("2"), a_server("1")]))

    assert forward == backward
    assert (forward.index, forward.term, forward.kind) == (1, 1, EntryKind.CONFIG)
    assert decode_config(forward.payload) == a_config("12")


def test_a_config_survives_the_log() -> None:
    left = changed(a_config("123"), Remove("3", "request"))
    for config in (Config(), a_config("123"), a_config("124", "35", outgoing="123"), left, a_config("1", removed="32")):
        assert decode_config(encode_config(config)) == config


def test_a_config_that_nobody_left_is_written_as_it_always_was() -> None:
    assert encode_config(a_config("1")) == dumps([1, ["1"], [], [], [["1", "server-1", "127.0.0.1:7001"]]])


@pytest.mark.parametrize(
    "plain",
    [
        [3, [], [], [], []],
        [2, [], [], [], []],
        [2, [], [], [], [], []],
        [1, [], [], [], [], [["1", "name", "address", "request"]]],
        [2, [], [], [], [], [["1", "name", "address"]]],
        [2, [], [], [], [], [["1", "name", "address", 7]]],
        [2, [], [], [], [], [["1", "name", "address", ""]], []],
        [1, [], [], []],
        [1, ["1"], [], [], [["1", "name"]]],
        [1, [1], [], [], []],
        [1, ["2", "1"], [], [], []],
        [1, ["1"], [], [], [["9", "stranger", ""]]],
        [1, 5, [], [], []],
        "text",
        7,
    ],
)
def test_a_damaged_config_is_never_read_as_a_good_one(plain: object) -> None:
    with pytest.raises(CodecError):
        decode_config(dumps(plain))


def test_history_brings_back_the_config_before_a_cut() -> None:
    history = ConfigHistory(a_config("1"), 1)
    history.push(5, a_config("12", outgoing="1"))
    history.push(8, a_config("12"))

    assert not history.truncate(9)
    assert history.truncate(6)
    assert (history.current, history.index) == (a_config("12", outgoing="1"), 5)


def test_history_cannot_be_cut_below_what_it_knows() -> None:
    with pytest.raises(AssertionError, match="no config is known"):
        ConfigHistory(a_config("1"), 4).truncate(4)


def test_history_answers_for_any_index_of_the_log() -> None:
    history = ConfigHistory()
    entries = [Entry(1, 1, EntryKind.CONFIG, encode_config(a_config("1"))), Entry(2, 1, EntryKind.COMMAND, b"x")]

    assert history.note(entries)
    assert not history.note(entries[1:])
    history.push(7, a_config("12"))

    assert history.at(0) == (Config(), 0)
    assert history.at(6) == (a_config("1"), 1)
    assert history.at(9) == (a_config("12"), 7)


def test_compacted_history_keeps_the_config_in_force() -> None:
    history = ConfigHistory(a_config("1"), 1)
    history.push(5, a_config("12"))
    history.compact(3)
    assert history.at(4) == (a_config("1"), 1)

    history.compact(5)
    assert history.at(4) == (a_config("12"), 5)
