from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.verbs.flags import Argument, BadUsage, Flag, flag_form, parse, usage

FLAGS = (
    Flag("detach", "do not wait", bool),
    Flag("check-index", "only if unchanged", int, value="index"),
    Flag("var", "a variable", list, value="k=v"),
    Flag("address", "where"),
    Flag("diff", "show differences", bool, default=True),
)
FILE = (Argument("file", "the job file"),)
FILE_AND_MORE = (Argument("job", "job"), Argument("rest", "more", optional=True, many=True))


@pytest.mark.parametrize(
    "words",
    [
        "-detach -check-index 7 a.json",
        "--detach --check-index=7 a.json",
        "a.json -detach -check-index=7",
        "-check-index 7 a.json --detach",
        "-detach=true -check-index=7 -- a.json",
    ],
)
def test_flags_may_stand_anywhere_and_be_written_either_way(words: str) -> None:
    found = parse(words.split(), FLAGS, FILE)

    assert (found["detach"], found["check-index"], found["file"]) == (True, 7, "a.json")


def test_defaults_are_there_and_known_to_be_defaults() -> None:
    found = parse(["-diff=false", "x"], FLAGS, FILE)

    assert (found["detach"], found["check-index"], found["var"], found["address"]) == (False, None, [], None)
    assert found["diff"] is False
    assert found.was_said("diff")
    assert not found.was_said("detach")
    assert len(list(found)) == 6
    assert "file" in found
    assert "other" not in found
    assert (found.get("file"), found.get("other")) == ("x", None)


def test_repeated_flags_gather_or_the_last_one_wins() -> None:
    found = parse(["-var", "a=1", "-var=b=2", "-address", "x", "-address", "y", "-"], FLAGS, FILE)

    assert found["var"] == ["a=1", "b=2"]
    assert found["address"] == "y"
    assert found["file"] == "-"


def test_a_value_may_look_like_a_flag() -> None:
    assert parse(["-address", "-x", "f"], FLAGS, FILE)["address"] == "-x"


def test_everything_after_two_dashes_is_an_argument() -> None:
    found = parse(["web", "--", "-detach", "--"], FLAGS, FILE_AND_MORE)

    assert (found["job"], found["rest"], found["detach"]) == ("web", ["-detach", "--"], False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-detatch", "x"], "unknown flag -detatch (did you mean -detach?)"),
        (["--zzz=1", "x"], "unknown flag --zzz (-help lists the flags of this command)"),
        (["x", "-address"], "flag -address needs a value (where)"),
        (["-check-index", "seven", "x"], "flag -check-index 'seven' is not a whole number"),
        (["-detach=maybe", "x"], "flag -detach=maybe is neither true nor false"),
        ([], "<file> is missing (the job file)"),
        (["x", "y"], "unexpected argument 'y' (this command takes 1 argument)"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str) -> None:
    with pytest.raises(BadUsage) as caught:
        parse(words, FLAGS, FILE)

    assert str(caught.value) == message


def test_arguments_nobody_wants_are_refused() -> None:
    with pytest.raises(BadUsage, match="takes no arguments"):
        parse(["x"], FLAGS, ())


@given(st.lists(st.text(max_size=6) | st.sampled_from(["-detach", "--", "-", "-check-index=1", "-var", "--diff=0"])))
def test_any_words_either_parse_or_are_refused(words: list[str]) -> None:
    try:
        found = parse(words, FLAGS, FILE_AND_MORE)
    except BadUsage:
        return
    assert isinstance(found["job"], str)
    assert len(found["rest"]) < len(words)


def test_usage_shows_what_is_optional() -> None:
    assert usage(FLAGS, FILE_AND_MORE) == "[options] <job> [<rest>...]"
    assert usage((), FILE) == "<file>"
    assert [flag_form(flag) for flag in FLAGS[:3]] == ["-detach", "-check-index=<index>", "-var=<k=v>"]
    assert flag_form(FLAGS[3]) == "-address=<str>"


COMMAND = (
    Argument("alloc", "which", unless="job"),
    Argument("command", "what to run", many=True, raw=True),
)
COMMAND_FLAGS = (Flag("job", "of a job"), Flag("t", "with a terminal", bool))


@pytest.mark.parametrize(
    ("words", "alloc", "command", "job"),
    [
        ("a1 ls -la -t", "a1", ["ls", "-la", "-t"], None),
        ("-t a1 ls", "a1", ["ls"], None),
        ("a1 -job= ls", None, ["a1", "ls"], ""),
        ("-job web ls -job x", None, ["ls", "-job", "x"], "web"),
        ("a1 -- -x y", "a1", ["-x", "y"], None),
    ],
)
def test_the_flags_of_somebody_elses_command_are_its_own(
    words: str, alloc: str | None, command: list[str], job: str | None
) -> None:
    given = parse(words.split(), COMMAND_FLAGS, COMMAND)

    assert (given["alloc"], given["command"], given["job"]) == (alloc, command, job)


def test_a_flag_that_stands_in_for_an_argument_leaves_the_next_one_required() -> None:
    with pytest.raises(BadUsage, match="<command> is missing"):
        parse(["-job", "web"], COMMAND_FLAGS, COMMAND)
