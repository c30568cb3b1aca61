"""Runs one command line against a fake agent and gives what a person would see."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedsched.cli.command import run
from fedsched.rpc.method import Method
from fedsched.rpc.methods.evaluation import EVAL_ALLOCS, EvaluationAllocsReply
from fedsched.rpc.methods.job import JOB_EVALUATIONS, JobEvaluationsReply
from fedsched.rpc.methods.job_extras import JOB_ALLOCS, JOB_LATEST_DEPLOYMENT, JobAllocsReply, JobDeploymentReply
from fedsched.verbs.terminal import Terminal
from tests.verbs.fake_agent import Answer, FakeAgent, fake_agent

NOW_NS = 1_787_308_401 * 10**9
STAMP = "2026-08-21T10:33:21Z"


NOTHING_THERE: Mapping[Method[Any, Any], Answer] = {
    EVAL_ALLOCS: lambda _: EvaluationAllocsReply(),
    JOB_ALLOCS: lambda _: JobAllocsReply(),
    JOB_LATEST_DEPLOYMENT: lambda _: JobDeploymentReply(),
    JOB_EVALUATIONS: lambda _: JobEvaluationsReply(),
}
"""What a region answers to the side questions of a verb while there is nothing to tell; a test's own answers win."""


class Seen(NamedTuple):
    """The exit code, both outputs, and the agent with what it was asked."""

    code: int
    out: str
    err: str
    agent: FakeAgent


class TypingPerson(io.StringIO):
    """Standard input with somebody at it."""

    def isatty(self) -> bool:
        return True


class Screen(io.StringIO):
    """Standard output that somebody looks at."""

    def isatty(self) -> bool:
        return True


def fedsched(
    line: str,
    answers: Mapping[Method[Any, Any], Answer] | None = None,
    *,
    typed: str | None = None,
    stdin: str = "",
    environ: Mapping[str, str] | None = None,
    screen: bool = False,
) -> Seen:
    """Run it. `typed` is what a person at the terminal answers to questions, `stdin` what is piped in.

    With `screen` the output is one that can be drawn over.
    """
    out, err = Screen() if screen else io.StringIO(), io.StringIO()
    with fake_agent({**NOTHING_THERE, **(answers or {})}) as agent:
        terminal = Terminal(
            out,
            err,
            io.StringIO(stdin) if typed is None else TypingPerson(typed),
            {"FEDSCHED_ADDR": agent.address, **(environ or {})},
            now_ns=lambda: NOW_NS,
        )
        code = run(shlex.split(line), terminal)
    return Seen(code, out.getvalue(), err.getvalue(), agent)
