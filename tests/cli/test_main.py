from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType

import pytest

from fedsched.cli import command as cli
from fedsched.cli import main as door
from fedsched.model.errors import Unavailable
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import NOT_PLACED, OK, Verbs

OVERVIEW = """\
Usage: fedsched [-version] [-help] <command> [options] [args]

Commands:

    job   run, stop, tag
    ping  ask whether anybody is there

`fedsched <command> -help` says more about one of them.
"""


def toy_module() -> ModuleType:
    verbs = Verbs()

    @verbs.verb(
        "job run",
        "submit a job",
        doc="Submits a job.\n\nThen waits.",
        flags=(Flag("detach", "do not wait", bool), Flag("check-index", "only if unchanged since", int, value="index")),
        arguments=(Argument("file", "the job file, or - for standard input"),),
    )
    def run(terminal: Terminal, given: Given) -> int:
        terminal.say(f"{given['file']} {given['detach']} {given['check-index']} {terminal.target.address}")
        terminal.heading("Bold")
        return NOT_PLACED

    @verbs.verb("job stop", "stop a job", is_remote=False)
    def stop(terminal: Terminal, given: Given) -> int:
        raise Unavailable("nobody answers", hint="is the agent running?")

    @verbs.verb("job tag apply", "name a version", is_remote=False)
    def tag(terminal: Terminal, given: Given) -> int:
        raise BadUsage("no such tag")

    @verbs.verb("ping", "ask whether anybody is there", is_remote=False)
    def ping(terminal: Terminal, given: Given) -> int:
        return OK if terminal.confirm("Sure?") else 1

    @verbs.verb("sim", "hands its words on", is_remote=False, is_raw=True)
    def raw(terminal: Terminal, given: Given) -> int:
        terminal.say(repr(given["words"]))
        return OK

    module = ModuleType("toy_verbs")
    module.VERBS = verbs  # type: ignore[attr-defined]
    return module


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toy_verbs", toy_module())
    monkeypatch.setattr(cli, "COMMANDS", {"job": "toy_verbs", "ping": "toy_verbs"})


def run(line: str, typed: str = "", environ: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err, io.StringIO(typed), environ or {})
    return cli.run(line.split(), terminal), out.getvalue(), err.getvalue()


def test_a_verb_gets_its_flags_and_its_exit_code_is_passed_on() -> None:
    code, out, err = run("job run a.json -detach --check-index=7 -address http://h:1")

    assert (code, out, err) == (2, "a.json True 7 http://h:1\n\nBold\n", "")


def test_old_flat_spellings_keep_working() -> None:
    assert run("run a.json")[1].startswith("a.json False None http://127.0.0.1:4646\n")


def test_an_unknown_command_exits_127_with_the_nearest_one() -> None:
    code, out, err = run("jop status")

    assert (code, out) == (127, "")
    assert err.startswith("Error: unknown command `fedsched jop`; did you mean `fedsched job`?\nUsage: fedsched ")
    assert run("job rum")[2].startswith("Error: unknown command `fedsched job rum`; did you mean `fedsched job run`?")
    assert run("job tag aply")[2].startswith("Error: unknown command `fedsched job tag aply`; did you mean")
    assert run("qqqq")[2].startswith("Error: unknown command `fedsched qqqq`\n")


def test_nothing_at_all_shows_the_overview_as_an_error_and_help_as_an_answer() -> None:
    assert run("") == (127, "", OVERVIEW)
    for line in ("-h", "-help", "--help", "help"):
        assert run(line) == (0, OVERVIEW, "")


def test_a_noun_alone_lists_its_verbs() -> None:
    listed = (
        "Usage: fedsched job <subcommand> [options] [args]\n\nSubcommands:\n\n"
        "    job run        submit a job\n    job stop       stop a job\n    job tag apply  name a version\n"
    )

    assert run("job") == (1, "", listed)
    assert run("job -h") == (0, listed, "")
    assert run("help job") == (0, listed, "")


def test_help_of_a_verb_lists_everything_it_takes() -> None:
    code, out, err = run("job run -h")

    assert (code, err) == (0, "")
    assert out.startswith(
        "Usage: fedsched job run [options] <file>\n\n  Submits a job.\n\n  Then waits.\n\nArguments:\n\n  <file>\n"
        "    the job file, or - for standard input\n\nOptions:\n\n  -detach\n    do not wait\n"
        "  -check-index=<index>\n    only if unchanged since\n\nConnection options:\n\n  -address=<url>\n"
    )
    assert "-no-color" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert run("help job run")[1] == out


def test_errors_go_to_stderr_with_their_hint_and_exit_1() -> None:
    assert run("job stop") == (1, "", "Error: nobody answers\n  is the agent running?\n")


def test_wrong_usage_points_to_the_help() -> None:
    assert run("job run -detatch x") == (
        1,
        "",
        "Error: unknown flag -detatch\n  did you mean -detach?\n`fedsched job run -help` shows how it is used\n",
    )
    assert run("job tag apply") == (
        1,
        "",
        "Error: no such tag\n`fedsched job tag apply -help` shows how it is used\n",
    )
    assert run("job run x -address=ftp://x")[2].startswith("Error: address 'ftp://x' has unknown scheme")


def test_a_raw_verb_gets_even_help_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {"sim": "toy_verbs"})

    assert run("sim -h --x=1 y") == (0, "['-h', '--x=1', 'y']\n", "")


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("yes\n", 1), ("Y\n", 1), ("\n", 1), ("", 1)])
def test_only_y_is_a_yes(typed: str, code: int) -> None:
    assert run("ping", typed)[:2] == (code, "Sure? [y/N] ")


@pytest.mark.parametrize(
    ("flags", "environ", "is_bold"),
    [
        ("", {}, False),
        ("-force-color", {"NO_COLOR": "1"}, True),
        ("-force-color -no-color", {}, False),
        ("", {"NOMAD_CLI_FORCE_COLOR": "1"}, True),
        ("", {"NOMAD_CLI_FORCE_COLOR": "1", "NOMAD_CLI_NO_COLOR": "true"}, False),
        ("-no-color", {"NOMAD_CLI_FORCE_COLOR": "1"}, False),
    ],
)
def test_colour_follows_flag_then_variable_then_terminal(flags: str, environ: dict[str, str], is_bold: bool) -> None:
    _, out, _ = run(f"job run x {flags}", environ=environ)

    assert ("\x1b[1mBold\x1b[0m" in out) is is_bold


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes with which the process would have been ended at once; its start and end are left alone."""
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setattr(door, "_travel_light", lambda: None)
    return codes


def test_a_brief_command_ends_the_process_and_a_lasting_one_returns(
    monkeypatch: pytest.MonkeyPatch, ended: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {"job": "toy_verbs", "sim": "toy_verbs"})

    monkeypatch.setattr(sys, "argv", ["fedsched", "job", "stop"])
    assert door.main() == 1
    monkeypatch.setattr(sys, "argv", ["fedsched", "sim", "x"])
    assert door.main() == 0

    assert ended == [1]
    assert capsys.readouterr().out == "['x']\n"


def test_lasting_commands_are_exactly_those_that_start_something() -> None:
    from fedsched.cli.start import VERBS

    assert {verb.words[0] for verb in VERBS.all} == door.LASTING


def test_the_process_reports_interruption(monkeypatch: pytest.MonkeyPatch, ended: list[int]) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupt)
    monkeypatch.setattr(sys, "argv", ["fedsched"])

    assert door.main() == 130
    assert ended == [130]


def test_a_reader_that_left_ends_the_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fedsched", "-help"], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (1, b"")
