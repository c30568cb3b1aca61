"""Following what was asked for to its end: an evaluation, then the deployment that it began. One line per change.

Ctrl-C stops the following and nothing else. Nothing here polls: each question waits at the server until its answer
would be another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fedsched.model.alloc import AllocListStub
from fedsched.model.deployment import Deployment, DeploymentStatus
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.model.job import JobType, behaves_as
from fedsched.rpc.methods.deployment import DEPLOYMENT_ALLOCS, DEPLOYMENT_GET, DeploymentRequest
from fedsched.rpc.methods.evaluation import EVAL_ALLOCS, EVAL_GET, EvaluationRequest
from fedsched.rpc.methods.job import JobRequest
from fedsched.rpc.methods.job_extras import JOB_LATEST_DEPLOYMENT
from fedsched.verbs.finding import alloc_table
from fedsched.verbs.live import LiveBlock
from fedsched.verbs.placement import failure_lines
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, NOT_PLACED, OK
from fedsched.verbs.view import columns, moment, pairs, short

WAIT_S: Final = 10.0
"""How long one question waits at the server; then it is asked again."""

REDRAW_S: Final = 1.0
"""The same where somebody watches a picture that has to look alive."""

SHOWN_ALLOCS: Final = 10
WAY_BACK_LOOKS: Final = 10
GOES_BACK: Final = "going back to version"
"""What the leader says of a deployment that it undoes."""

DEPLOYED: Final = ("Task Group", "Desired", "Placed", "Healthy", "Unhealthy", "Progress Deadline")


def monitor(terminal: Terminal, eval_id: str, *, namespace: str, verbose: bool) -> int:
    """Print what becomes of an evaluation and its deployment; the exit code says whether everything was placed."""
    shown = short(eval_id, verbose=verbose)
    say_with_time(terminal, f'Monitoring evaluation "{shown}"', is_head=True)
    evaluation = _followed(terminal, eval_id, namespace, verbose)
    code = _verdict(terminal, evaluation, shown, verbose)
    if evaluation.status is EvaluationStatus.FAILED and evaluation.next_eval:
        say_with_time(terminal, f'Evaluation "{short(evaluation.next_eval, verbose=verbose)}" tries again later')
    deployment_id = _deployment_of(terminal, evaluation, namespace) if code != FAILED else ""
    if not deployment_id:
        return code
    return monitor_deployment(terminal, deployment_id, namespace=namespace, verbose=verbose) or code


def monitor_deployment(terminal: Terminal, deployment_id: str, *, namespace: str, verbose: bool) -> int:
    """Print how a deployment ends: 0 if well, 1 if it failed or was cancelled. A way back that it began is followed."""
    shown = short(deployment_id, verbose=verbose)
    say_with_time(terminal, f'Monitoring deployment "{shown}"', is_head=True)
    follow = _watched if LiveBlock.suits(terminal) else _told
    deployment = follow(terminal, deployment_id, namespace, verbose)
    is_well = deployment.status is DeploymentStatus.SUCCESSFUL
    terminal.say(f'  [{"ok" if is_well else "!!"}] Deployment "{shown}" {deployment.status.value}\n')
    terminal.say(f"    {moment(terminal.now_ns())}")
    show_deployment(terminal, deployment, verbose=verbose, indent="    ")
    way_back = _way_back(terminal, deployment) if GOES_BACK in deployment.status_description else ""
    if way_back:
        terminal.say()
        monitor_deployment(terminal, way_back, namespace=namespace, verbose=verbose)
    return OK if is_well else FAILED


def _told(terminal: Terminal, deployment_id: str, namespace: str, verbose: bool) -> Deployment:
    """Follow a deployment with one line per change."""
    deployment, last = _get_deployment(terminal, deployment_id, namespace), ""
    while deployment.is_active:
        now = _progress(deployment)
        if now != last:
            say_with_time(terminal, now)
            last = now
        deployment = _get_deployment(terminal, deployment_id, namespace, newer_than=terminal.client.last.index)
    return deployment


def _watched(terminal: Terminal, deployment_id: str, namespace: str, verbose: bool) -> Deployment:
    """Follow a deployment with a picture of it that is drawn anew: its groups and its allocations."""
    block = LiveBlock(terminal)
    deployment = _get_deployment(terminal, deployment_id, namespace)
    while deployment.is_active:
        index = terminal.client.last.index
        request = DeploymentRequest(deployment_id=deployment_id)
        allocs = terminal.client.call(DEPLOYMENT_ALLOCS, request, namespace=namespace).allocs
        lines = [f"  {block.spinner()} {_progress(deployment)}", "", *deployed_table(deployment).splitlines()]
        if allocs:
            newest = sorted(allocs, key=lambda one: -one.modify_index)[:SHOWN_ALLOCS]
            lines += ["", *alloc_table(terminal, newest, verbose=verbose).splitlines()]
        block.draw("".join(f"    {line}\n" if number else f"{line}\n" for number, line in enumerate(lines)))
        deployment = _get_deployment(terminal, deployment_id, namespace, newer_than=index, wait_s=REDRAW_S)
    block.clear()
    return deployment


def _way_back(terminal: Terminal, failed: Deployment) -> str:
    """The deployment that brings an earlier version back, as soon as there is one; empty if none comes up."""
    request = JobRequest(job_id=failed.job_id)
    index = 0
    for _ in range(WAY_BACK_LOOKS):
        found = terminal.client.call(
            JOB_LATEST_DEPLOYMENT,
            request,
            namespace=failed.namespace,
            min_index=index,
            max_wait_s=REDRAW_S if index else 0.0,
        ).deployment
        index = terminal.client.last.index
        if found is not None and found.job_version > failed.job_version:
            return found.id
    return ""


def show_deployment(terminal: Terminal, deployment: Deployment, *, verbose: bool, indent: str = "") -> None:
    """Print a deployment's head and how far its groups have come."""
    head = [
        ("ID", short(deployment.id, verbose=verbose)),
        ("Job ID", deployment.job_id),
        ("Job Version", deployment.job_version),
        ("Status", deployment.status.value),
        ("Description", deployment.status_description),
    ]
    text = pairs(head)
    if deployment.task_groups:
        text += f"\n{terminal.bold('Deployed')}\n{deployed_table(deployment)}"
    terminal.write("".join(f"{indent}{line}\n" if line else "\n" for line in text.splitlines()))


def deployed_table(deployment: Deployment) -> str:
    """Give the table of a deployment's groups; columns for canaries only where there are some."""
    states = sorted(deployment.task_groups.items())
    has_canaries = any(one.desired_canaries for _, one in states)
    has_revert = any(one.auto_revert for _, one in states)
    head = list(DEPLOYED)
    extra = [("Auto Revert", has_revert), ("Promoted", has_canaries), ("Canaries", has_canaries)]
    head[1:1] = [name for name, is_shown in extra if is_shown and name != "Canaries"]
    if has_canaries:
        head.insert(head.index("Placed"), "Canaries")
    rows = []
    for name, one in states:
        cells = {
            "Task Group": name,
            "Auto Revert": one.auto_revert,
            "Promoted": one.promoted if one.desired_canaries else "N/A",
            "Desired": one.desired_total,
            "Canaries": one.desired_canaries,
            "Placed": one.placed_allocs,
            "Healthy": one.healthy_allocs,
            "Unhealthy": one.unhealthy_allocs,
            "Progress Deadline": moment(one.require_progress_by_ns),
        }
        rows.append([cells[title] for title in head])
    return columns(head, rows)


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


def _followed(terminal: Terminal, eval_id: str, namespace: str, verbose: bool) -> Evaluation:
    """Ask until the evaluation has ended, or waits for capacity; print what is new each time."""
    known: dict[str, str] = {}
    evaluation = _get(terminal, eval_id, namespace)
    index = terminal.client.last.index
    trigger = f'job "{evaluation.job_id}"' if not evaluation.node_id else f'node "{short(evaluation.node_id)}"'
    say_with_time(terminal, f"Evaluation triggered by {trigger}")
    while True:
        _tell_allocs(terminal, evaluation, known, namespace, verbose)
        if evaluation.status is not EvaluationStatus.PENDING:
            return evaluation
        later = _get(terminal, eval_id, namespace, newer_than=index)
        index = terminal.client.last.index
        if later.deployment_id and later.deployment_id != evaluation.deployment_id:
            say_with_time(terminal, f'Evaluation within deployment: "{short(later.deployment_id, verbose=verbose)}"')
        if later.status is not evaluation.status:
            _tell_allocs(terminal, later, known, namespace, verbose)
            say_with_time(terminal, f'Evaluation status changed: "{evaluation.status.value}" -> "{later.status.value}"')
        evaluation = later


def _tell_allocs(
    terminal: Terminal, evaluation: Evaluation, known: dict[str, str], namespace: str, verbose: bool
) -> None:
    request = EvaluationRequest(eval_id=evaluation.id)
    for stub in terminal.client.call(EVAL_ALLOCS, request, namespace=namespace).allocs:
        before, now = known.get(stub.id), stub.client_status.value
        known[stub.id] = now
        name = short(stub.id, verbose=verbose)
        if before is None:
            say_with_time(terminal, f'Allocation "{name}" {_what(stub, evaluation)}: {_where(stub, verbose)}')
        elif before != now:
            words = f" ({stub.client_description})" if stub.client_description else ""
            say_with_time(terminal, f'Allocation "{name}" status changed: "{before}" -> "{now}"{words}')


def _what(stub: AllocListStub, evaluation: Evaluation) -> str:
    return "created" if stub.create_index >= evaluation.create_index else "modified"


def _where(stub: AllocListStub, verbose: bool) -> str:
    return f'node "{short(stub.node_id, verbose=verbose)}", group "{stub.task_group}"'


def _verdict(terminal: Terminal, evaluation: Evaluation, shown: str, verbose: bool) -> int:
    status = evaluation.status.value
    end = f'Evaluation "{shown}" finished with status "{status}"'
    if evaluation.failed_tg_allocs:
        say_with_time(terminal, f"{end} but failed to place all allocations:", is_head=True)
        for line in failure_lines(evaluation.failed_tg_allocs, evaluation.queued_allocations):
            if line.startswith(" "):
                terminal.say(f"    {line}")
            else:
                say_with_time(terminal, line)
        if evaluation.blocked_eval:
            waiting = short(evaluation.blocked_eval, verbose=verbose)
            say_with_time(terminal, f'Evaluation "{waiting}" waiting for additional capacity to place remainder')
        return NOT_PLACED
    if not evaluation.status.is_terminal:
        words = evaluation.status_description or "it waits"
        say_with_time(terminal, f'Evaluation "{shown}" is "{status}": {words}', is_head=True)
        return NOT_PLACED
    say_with_time(terminal, end, is_head=True)
    if evaluation.status is not EvaluationStatus.COMPLETE and evaluation.status_description:
        say_with_time(terminal, evaluation.status_description)
    return OK if evaluation.status is EvaluationStatus.COMPLETE else FAILED


def _deployment_of(terminal: Terminal, evaluation: Evaluation, namespace: str) -> str:
    """The deployment that the evaluation belongs to or has begun; none for jobs that know no updates."""
    if evaluation.deployment_id:
        return evaluation.deployment_id
    if behaves_as(evaluation.type) not in (JobType.SERVICE, JobType.SYSTEM):
        return ""
    request = JobRequest(job_id=evaluation.job_id)
    found = terminal.client.call(JOB_LATEST_DEPLOYMENT, request, namespace=namespace).deployment
    is_its_own = found is not None and found.create_index >= evaluation.create_index
    return found.id if found is not None and is_its_own else ""


def _progress(deployment: Deployment) -> str:
    parts = []
    for name, one in sorted(deployment.task_groups.items()):
        if not one.desired_canaries or one.promoted:
            parts.append(f"{name}: {one.healthy_allocs} of {one.desired_total} healthy")
        elif one.healthy_allocs < one.desired_canaries or one.auto_promote:
            parts.append(f"{name}: {one.healthy_allocs} of {one.desired_canaries} canaries healthy")
        else:
            parts.append(f"{name}: {one.desired_canaries} canaries healthy, wait for promotion")
    return f"Deployment is {deployment.status.value}; {', '.join(parts)}"


def _get(terminal: Terminal, eval_id: str, namespace: str, newer_than: int = 0) -> Evaluation:
    request = EvaluationRequest(eval_id=eval_id)
    wait_s = WAIT_S if newer_than else 0.0
    reply = terminal.client.call(EVAL_GET, request, namespace=namespace, min_index=newer_than, max_wait_s=wait_s)
    return reply.evaluation


def _get_deployment(
    terminal: Terminal, deployment_id: str, namespace: str, newer_than: int = 0, wait_s: float = WAIT_S
) -> Deployment:
    request = DeploymentRequest(deployment_id=deployment_id)
    wait_s = wait_s if newer_than else 0.0
    reply = terminal.client.call(DEPLOYMENT_GET, request, namespace=namespace, min_index=newer_than, max_wait_s=wait_s)
    return reply.deployment


def say_with_time(terminal: Terminal, text: str, *, is_head: bool = False) -> None:
    """Print a line of something that is followed."""
    stamp = moment(terminal.now_ns())
    terminal.say(f"{terminal.bold('==>') if is_head else '   '} {stamp}: {text}")
