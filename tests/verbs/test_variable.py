"""`var ...` as a person sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsched.model.errors import Conflict
from fedsched.model.variable import Variable
from fedsched.rpc.methods import variable as methods
from tests.verbs.commands import NOW_NS, STAMP, Seen, fedsched


def a_variable(**fields: Any) -> Variable:
    known: dict[str, Any] = {"path": "app/db", "items": {"user": "me", "password": "secret"}, "modify_index": 12}
    return Variable(**{**known, "create_time_ns": NOW_NS, "modify_time_ns": NOW_NS, **fields})


def put(line: str, **options: Any) -> tuple[Seen, Any]:
    def answer(request: methods.VarPutRequest) -> methods.VarReply:
        return methods.VarReply(variable=a_variable(items=dict(request.items)))

    seen = fedsched(f"var put {line}", {methods.VAR_PUT: answer}, **options)
    return seen, next(iter(seen.agent.requests(methods.VAR_PUT)), None)


def test_a_new_variable_is_put_only_if_there_is_none() -> None:
    seen, request = put("app/db user=me 'password=a=b'")

    assert request == methods.VarPutRequest(path="app/db", items={"user": "me", "password": "a=b"}, check_index=0)
    assert seen.out == (
        f"Namespace   = default\nPath        = app/db\nCreate Time = {STAMP}\nCheck Index = 12\n"
        "\nItems\npassword = a=b\nuser     = me\n"
    )


@pytest.mark.parametrize(("flag", "index"), [("-force", None), ("-check-index=12", 12)])
def test_what_is_there_is_replaced_when_asked_to(flag: str, index: int | None) -> None:
    assert put(f"{flag} app/db user=me")[1].check_index == index


def test_both_ways_of_replacing_exclude_each_other() -> None:
    assert "exclude" in put("-force -check-index=1 app/db a=b")[0].err


def test_a_file_is_the_value_of_an_item(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("long\n")

    assert put(f"app/db key=@{tmp_path}/key")[1].items == {"key": "long\n"}


def test_a_whole_variable_comes_from_a_file_or_standard_input(tmp_path: Path) -> None:
    whole = json.dumps({"Items": {"a": "1", "b": "2"}, "ModifyIndex": 7})
    (tmp_path / "whole.json").write_text(whole)

    assert put(f"app/db @{tmp_path}/whole.json b=3")[1] == methods.VarPutRequest(
        path="app/db", items={"a": "1", "b": "3"}, check_index=7
    )
    assert put("app/db -", stdin=whole)[1].items == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("line", "stdin", "words"),
    [
        ("app/db nonsense", "", "not name=value"),
        ("app/db =x", "", "not name=value"),
        ("app/db -", "{", "not a variable in JSON"),
        ("app/db -", "[]", "no Items"),
        ("app/db -", '{"Items": {"a": 1}}', "no Items"),
        ("app/db key=@/nowhere/at/all", "", "cannot read"),
    ],
)
def test_what_cannot_be_items_is_refused_before_anybody_is_asked(line: str, stdin: str, words: str) -> None:
    seen, request = put(line, stdin=stdin)

    assert (seen.code, request) == (1, None)
    assert words in seen.err


def test_a_conflict_says_how_to_go_on() -> None:
    def refuse(_: Any) -> Any:
        raise Conflict("variable 'app/db' is at index 12, not at 0")

    seen = fedsched("var put app/db a=b", {methods.VAR_PUT: refuse})

    assert seen.code == 1
    assert "index 12" in seen.err
    assert "var get app/db" in seen.err


def test_one_item_is_printed_alone() -> None:
    answers = {methods.VAR_GET: lambda _: methods.VarReply(variable=a_variable())}

    assert fedsched("var get -item password app/db", answers).out == "secret\n"
    missing = fedsched("var get -item key app/db", answers)
    assert (missing.code, "it has password, user" in missing.err) == (1, True)
    assert json.loads(fedsched("var get -json app/db", answers).out)["Items"]["user"] == "me"
    assert "Check Index = 12" in fedsched("var get app/db", answers).out


def test_variables_are_listed_without_their_items() -> None:
    def page(request: Any) -> methods.VarListReply:
        if request.next_token:
            return methods.VarListReply(variables=(a_variable(path="app/z").metadata,))
        return methods.VarListReply(variables=(a_variable().metadata,), next_token="app/z")

    seen = fedsched("var list app/", {methods.VAR_LIST: page})

    assert seen.out == f"Namespace  Path    Last Updated\ndefault    app/db  {STAMP}\ndefault    app/z   {STAMP}\n"
    assert seen.agent.requests(methods.VAR_LIST)[0].prefix == "app/"
    assert fedsched("var list", {methods.VAR_LIST: lambda _: methods.VarListReply()}).out == "No variables found\n"


def test_a_variable_is_purged() -> None:
    seen = fedsched("var purge -check-index 3 app/db", {methods.VAR_DELETE: lambda _: methods.VarWriteReply()})

    assert seen.out == 'Successfully purged variable "app/db"!\n'
    assert seen.agent.requests(methods.VAR_DELETE)[0].check_index == 3
