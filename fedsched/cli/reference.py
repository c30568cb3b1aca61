"""Writes `docs/reference/commands.md` from the verbs: `python -m fedsched.cli.reference > that file`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedsched.cli.command import COMMANDS
from fedsched.verbs.flags import Flag, flag_form, usage
from fedsched.verbs.table import ALIASES, all_verbs
from fedsched.verbs.verb import COLOUR_FLAGS, CONNECTION_FLAGS, SEVERAL, Regions, Verb

HEAD = """\
# Commands

Written from the code by `python -m fedsched.cli.reference`; do not edit.

Flags are written `-flag` or `--flag`, `-flag=value` or `-flag value`, before or after arguments. Answers go to standard
output, everything else to standard error. Exit codes: 0 done; 1 any error; 2 submitted, but not everything could be
placed; 127 no such command.

Commands that only look take several regions, `-region eu,us`, or `-region '*'` for all known ones. Lists get a column
for the region, all else is shown in blocks, and `-json` prints an object with an entry per region, which is an `Answer`
or an `Error`. Exit codes then: 0 all regions answered; 2 some did not; 1 none did.
"""


def reference_page() -> str:
    verbs = all_verbs(COMMANDS)
    lines = [HEAD, *_index(verbs)]
    for verb in verbs:
        lines += ["", *_section(verb)]
    lines += ["", "## Connection flags", "", "Of every command that talks to an agent.", "", *_flags(CONNECTION_FLAGS)]
    lines += ["", "## General flags", "", *_flags(COLOUR_FLAGS)]
    lines += ["", "## Old spellings", "", *(f"- `{old}` is `{' '.join(new)}`" for old, new in sorted(ALIASES.items()))]
    return "\n".join(lines) + "\n"


def _index(verbs: Sequence[Verb]) -> list[str]:
    rows = [f"| [`{verb.name}`](#{'-'.join(verb.words)}) | {verb.summary} |" for verb in verbs]
    return ["| command | does |", "| --- | --- |", *rows]


def _section(verb: Verb) -> list[str]:
    flags = () if verb.is_raw else verb.all_flags
    lines = [
        f"## {verb.name}",
        "",
        f"`fedsched {verb.name} {usage(flags, verb.arguments)}`".replace(" `", "`"),
        "",
        verb.doc,
    ]
    if verb.regions is not Regions.ONE:
        lines += ["", SEVERAL[verb.regions]]
    if verb.arguments:
        lines += ["", *(f"- `<{one.name}>`: {one.doc}" for one in verb.arguments)]
    if verb.flags:
        lines += ["", *_flags(verb.flags)]
    return lines


def _flags(flags: Sequence[Flag]) -> list[str]:
    return [f"- `{flag_form(flag)}`: {flag.doc}" for flag in flags]


if __name__ == "__main__":
    sys.stdout.write(reference_page())
