"""`job validate` and `job init`: job files without an agent."""

from __future__ import annotations

import os
from typing import Final

from fedsched.model.errors import BadRequest, Conflict
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.job_file import FILE, FILE_FLAGS, ServedTypes, read_given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, OK, Verbs

VERBS = Verbs()

EXAMPLE_FILE: Final = "example.nomad.hcl"


@VERBS.verb(
    "job validate",
    "check a job file",
    doc="Reads a job file and says everything that is wrong with it, each with its line, and what is unwise. What"
    " depends on the region (does the namespace exist?) is checked when the job is submitted. No agent is asked, but"
    " for one thing: whether a server takes jobs of a type that is not built in. Exits 1 when the job would be"
    " refused.",
    flags=FILE_FLAGS,
    arguments=(FILE,),
)
def validate(terminal: Terminal, given: Given) -> int:
    served = ServedTypes(terminal, if_unheard=False)
    checked = read_given(terminal, given, served)
    if checked.warnings:
        terminal.say(terminal.bold("Job Warnings:"))
        for warning in checked.warnings:
            terminal.say(f"* {warning}")
        terminal.say()
    if checked.problems:
        terminal.say(terminal.bold("Job validation errors:"))
        for problem in checked.problems:
            terminal.say(f"* {_indented(problem.render())}")
        if served.unheard:
            terminal.warn(f"Which types servers take besides those built in could not be asked: {served.unheard}")
        if served.advice:
            terminal.warn(served.advice)
        return FAILED
    terminal.say("Job validation successful")
    return OK


@VERBS.verb(
    "job init",
    "write an example job file",
    doc="Writes an example job to begin with. It runs on any agent with the raw_exec driver and python3. An existing"
    " file is left alone.",
    flags=(
        Flag("short", "without the comments", bool),
        Flag("connect", "two groups that talk to each other through their sidecars", bool),
    ),
    arguments=(Argument("file", f"where to write it; {EXAMPLE_FILE} by default", optional=True),),
    is_remote=False,
)
def init(terminal: Terminal, given: Given) -> int:
    from fedsched.jobspec.example import text_of

    name = given["file"] or EXAMPLE_FILE
    try:
        with open(name, "x", encoding="utf-8") as file:
            file.write(text_of(short=given["short"], connect=given["connect"]))
    except FileExistsError:
        raise Conflict(f"{name} exists already", hint="name another file, or move this one away") from None
    except OSError as error:
        raise BadRequest(f"{name}: cannot be written: {error.strerror}") from error
    terminal.say(f"Example job file written to {name}")
    terminal.say(f"`fedsched job run {os.path.relpath(name)}` submits it")
    return OK


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
