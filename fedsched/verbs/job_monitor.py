"""Following an evaluation from submission to its end, one line per change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.rpc.methods.evaluation import EVAL_GET, EvaluationRequest
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, NOT_PLACED, OK
from fedsched.verbs.view import moment, short

WAIT_S: Final = 2.0
"""How long to wait for a scheduler to pick the evaluation up before saying that none has."""


def monitor(terminal: Terminal, eval_id: str, *, namespace: str, verbose: bool) -> int:
    """Print what becomes of an evaluation; the exit code says whether everything was placed."""
    shown = short(eval_id, verbose=verbose)
    _say(terminal, f'Monitoring evaluation "{shown}"', is_head=True)
    evaluation = _get(terminal, eval_id, namespace)
    _say(terminal, f'Evaluation triggered by job "{evaluation.job_id}"')
    status = evaluation.status
    if not status.is_terminal:
        evaluation = _get(terminal, eval_id, namespace, newer_than=terminal.client.last.index)
    if evaluation.status is not status:
        _say(terminal, f'Evaluation status changed: "{status.value}" -> "{evaluation.status.value}"')
    if evaluation.status is EvaluationStatus.PENDING:
        _say(
            terminal,
            f'Evaluation "{shown}" waits: this version registers jobs but does not place them yet',
            is_head=True,
        )
        return NOT_PLACED
    return _verdict(terminal, evaluation, shown)


def _verdict(terminal: Terminal, evaluation: Evaluation, shown: str) -> int:
    status = evaluation.status.value
    end = f'Evaluation "{shown}" finished with status "{status}"'
    if evaluation.failed_tg_allocs:
        _say(terminal, f"{end} but failed to place all allocations:", is_head=True)
        for group, metric in sorted(evaluation.failed_tg_allocs.items()):
            count = metric.coalesced_failures + 1
            _say(terminal, f'Task Group "{group}" (failed to place {count} allocation{"s"[: count > 1]})')
        return NOT_PLACED
    if not evaluation.status.is_terminal:
        _say(
            terminal, f'Evaluation "{shown}" is "{status}": {evaluation.status_description or "it waits"}', is_head=True
        )
        return NOT_PLACED
    _say(terminal, end, is_head=True)
    return OK if evaluation.status is EvaluationStatus.COMPLETE else FAILED


def evaluation_rows(found: Iterable[Evaluation], *, verbose: bool) -> list[tuple[Any, ...]]:
    """Give the rows of a job's list of evaluations: ID, Priority, Triggered By, Status, Placement Failures."""
    return [
        (short(one.id, verbose=verbose), one.priority, str(one.triggered_by), one.status.value, failures(one))
        for one in found
    ]


def failures(evaluation: Evaluation) -> str:
    """Tell whether something could not be placed, as far as that is known."""
    if evaluation.status is EvaluationStatus.BLOCKED:
        return "N/A - In Progress"
    return "true" if evaluation.failed_tg_allocs else "false"


def _get(terminal: Terminal, eval_id: str, namespace: str, newer_than: int = 0) -> Evaluation:
    request = EvaluationRequest(eval_id=eval_id)
    wait_s = WAIT_S if newer_than else 0.0
    reply = terminal.client.call(EVAL_GET, request, namespace=namespace, min_index=newer_than, max_wait_s=wait_s)
    return reply.evaluation


def _say(terminal: Terminal, text: str, *, is_head: bool = False) -> None:
    stamp = moment(terminal.now_ns())
    terminal.say(f"{terminal.bold('==>') if is_head else '   '} {stamp}: {text}")
