"""Filter expressions: what they mean, and how they are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.model.filter import CHARS_MAX, BadFilter, compile_filter

ONE: dict[str, Any] = {
    "ID": "8f0b2a77",
    "Status": "blocked",
    "Priority": 50,
    "AllAtOnce": False,
    "JobID": "web-front",
    "NodeID": "",
    "Meta": {"team": "a", "a.b": "dotted"},
    "Datacenters": ["dc1", "dc2"],
    "TaskGroups": [{"Name": "g", "Count": 3}, {"Name": "h", "Count": 1}],
}


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ('Status == "blocked"', True),
        ("Status == blocked", True),
        ("Status != blocked", False),
        ("Priority == 50", True),
        ("AllAtOnce == false", True),
        ("Meta.team == a", True),
        ('Meta["a.b"] == "dotted"', True),
        ("Meta.other == a", False),
        ("Meta.team.deeper == a", False),
        ("Status == pending or Priority == 50", True),
        ("Status == pending and Priority == 50 or ID == `8f0b2a77`", True),
        ("Status == pending and (Priority == 50 or ID == `8f0b2a77`)", False),
        ("not Status == pending", True),
        ("not not Status == pending", False),
        ("NodeID is empty", True),
        ("NodeID is not empty", False),
        ("Meta is not empty", True),
        ("Nothing is empty", True),
        ("web in JobID", True),
        ("dc2 in Datacenters", True),
        ("dc3 not in Datacenters", True),
        ("Datacenters contains dc1", True),
        ("JobID not contains front", False),
        ("Meta contains team", True),
        ("Nothing contains x", False),
        ('JobID matches "^web-"', True),
        ('JobID not matches "^web-"', False),
        ("any TaskGroups as g { g.Count == 3 }", True),
        ("all TaskGroups as g { g.Count == 3 }", False),
        ("any Nothing as g { g.Count == 3 }", False),
        ('ID == "8f0b\\2a77"', True),
    ],
)
def test_an_expression_means_what_it_says(text: str, is_met: bool) -> None:
    assert compile_filter(text)(ONE) is is_met


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing more where a name"),
        ("Status", "nothing more where ==, !=, in"),
        ("Status ==", "nothing more where a value"),
        ("Status == a b", "'b' where `and`, `or`, or the end"),
        ("Status > 3", "'>' where ==, !=, in"),
        ("Status not likes a", "'likes' where ==, !=, in"),
        ("(Status == a", "nothing more where `)`"),
        ("and == a", "'and' where a name"),
        ('Status == "a', "cannot be read from"),
        ("Status is full", "'full' where `empty`"),
        ("Meta[ == a", "where `]`"),
        ('Status matches "["', "cannot be used"),
        ("not " * 60 + "Status == a", "nested too deeply"),
        ("a" * (CHARS_MAX + 1), "4097 characters"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(BadFilter) as caught:
        compile_filter(text)

    assert words in caught.value.message
    assert caught.value.hint


def test_a_name_that_no_such_thing_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadFilter, match="nothing here has 'Staus'") as caught:
        compile_filter("Staus == a", ONE)

    assert caught.value.hint == "did you mean Status?"
    with pytest.raises(BadFilter) as caught:
        compile_filter("Zzz == a", ("ID", "Status"))
    assert caught.value.hint == "there are ID, Status"
    assert compile_filter("any TaskGroups as g { g.Count == 3 }", ONE)(ONE)


def test_more_may_follow_a_key_in_brackets() -> None:
    test = compile_filter('States["a b"].State == running')

    assert test({"States": {"a b": {"State": "running"}}})
    assert not test({"States": {"a b": {"State": "dead"}}})


@given(st.text(alphabet='ab =!()[]{}"`.\\ andornotisemptymatchesin', max_size=60))
@settings(max_examples=200)
def test_any_text_is_read_or_refused_and_never_breaks(text: str) -> None:
    try:
        test = compile_filter(text)
    except BadFilter:
        return
    assert test(ONE) in (True, False)
