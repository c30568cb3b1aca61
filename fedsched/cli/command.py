"""One command line: find the verb, sort its words, run it, turn what went wrong into an exit code.

Short commands live or die by what they import: this module and the verbs pull in neither trio nor anything else that
the command at hand does not need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fedsched.model.errors import FedschedError
from fedsched.verbs.flags import BadUsage
from fedsched.verbs.table import MODULES, Group, Unknown, all_verbs, find
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, OK, Verb

UNKNOWN_COMMAND: Final = 127

COMMANDS: Final[Mapping[str, str]] = {
    **MODULES,
    "agent": "fedsched.cli.start",
    "bench": "fedsched.cli.start",
    "demo": "fedsched.cli.start",
    "dev": "fedsched.cli.start",
    "sim": "fedsched.cli.start",
}
HELP: Final = frozenset({"-h", "-help", "--help"})
VERSION: Final = frozenset({"-v", "-version", "--version"})


def run(words: Sequence[str], terminal: Terminal) -> int:
    """Run one command line on a terminal."""
    if not words:
        terminal.warn(overview().rstrip("\n"))
        return UNKNOWN_COMMAND
    if words[0] in HELP or words[0] == "help":
        return _help(words[1:], terminal)
    if words[0] in VERSION:
        words = ["version", *words[1:]]
    found, rest = find(words, COMMANDS)
    match found:
        case Verb():
            return _run_verb(found, rest, terminal)
        case Group():
            text = group_help(found)
            if any(word in HELP for word in rest):
                terminal.write(text)
                return OK
            terminal.warn(text.rstrip("\n"))
            return FAILED
        case Unknown():
            return _unknown(found, terminal)


def overview() -> str:
    """Give the list of commands by their first word."""
    verbs = all_verbs(COMMANDS)
    firsts = sorted({verb.words[0] for verb in verbs})
    lines = []
    for first in firsts:
        inside = [verb for verb in verbs if verb.words[0] == first]
        text = inside[0].summary if inside[0].words == (first,) else ", ".join(_inner(inside))
        lines.append((first, text))
    pad = max(len(first) for first, _ in lines)
    listed = "".join(f"    {first:{pad}}  {text}\n" for first, text in lines)
    return (
        "Usage: fedsched [-version] [-help] <command> [options] [args]\n\nCommands:\n\n"
        f"{listed}\n`fedsched <command> -help` says more about one of them.\n"
    )


def group_help(group: Group) -> str:
    """Give the verbs that begin with the same words."""
    name = " ".join(group.words)
    pad = max(len(verb.name) for verb in group.verbs)
    listed = "".join(f"    {verb.name:{pad}}  {verb.summary}\n" for verb in group.verbs)
    return f"Usage: fedsched {name} <subcommand> [options] [args]\n\nSubcommands:\n\n{listed}"


def _inner(verbs: Sequence[Verb]) -> list[str]:
    return list(dict.fromkeys(verb.words[1] for verb in verbs))


def _run_verb(verb: Verb, rest: Sequence[str], terminal: Terminal) -> int:
    flags_end = rest.index("--") if "--" in rest else len(rest)
    if not verb.is_raw and any(word in HELP for word in rest[:flags_end]):
        terminal.write(verb.help())
        return OK
    try:
        given = verb.parse(rest)
        terminal.prepare(given)
        if verb.is_remote and terminal.target.names_several:
            from fedsched.verbs.fan_out import run_in_several  # most commands are for one region

            return run_in_several(verb, terminal, given)
        return verb.run(terminal, given)
    except BadUsage as error:
        _complain(error, terminal)
        terminal.warn(f"`fedsched {verb.name} -help` shows how it is used")
        return FAILED
    except FedschedError as error:
        _complain(error, terminal)
        return FAILED
    finally:
        terminal.close()


def _complain(error: FedschedError, terminal: Terminal) -> None:
    terminal.warn(f"Error: {error.message}")
    if error.hint:
        terminal.warn(f"  {error.hint}")


def _help(words: Sequence[str], terminal: Terminal) -> int:
    if not words:
        terminal.write(overview())
        return OK
    return run([*words, "-help"], terminal)


def _unknown(unknown: Unknown, terminal: Terminal) -> int:
    typed = " ".join(unknown.words)
    hint = f"; did you mean `fedsched {unknown.suggestion}`?" if unknown.suggestion else ""
    terminal.warn(f"Error: unknown command `fedsched {typed}`{hint}")
    terminal.warn("Usage: fedsched [-version] [-help] <command> [options] [args]; `fedsched -help` lists the commands")
    return UNKNOWN_COMMAND
