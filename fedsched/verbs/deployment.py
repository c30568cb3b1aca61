"""`deployment ...`: look at supervised changes, and decide about them."""

from __future__ import annotations

from fedsched.model.deployment import Deployment
from fedsched.model.errors import NotFound
from fedsched.model.record import to_api
from fedsched.rpc.methods.deployment import (
    DEPLOYMENT_ALLOCS,
    DEPLOYMENT_FAIL,
    DEPLOYMENT_GET,
    DEPLOYMENT_PAUSE,
    DEPLOYMENT_PROMOTE,
    DEPLOYMENT_UNBLOCK,
    DeploymentPauseRequest,
    DeploymentPromoteRequest,
    DeploymentRequest,
    DeploymentWriteReply,
)
from fedsched.rpc.methods.job import JobRequest
from fedsched.rpc.methods.job_extras import JOB_DEPLOYMENTS, JOB_LATEST_DEPLOYMENT
from fedsched.rpc.methods.rollout import (
    ROLLOUT_FAIL,
    ROLLOUT_UNBLOCK,
    RolloutFailRequest,
    RolloutUnblockRequest,
    RolloutWriteReply,
)
from fedsched.verbs.finding import all_deployments, alloc_table, deployment_table, find_deployment, find_job
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.job_monitor import monitor, monitor_deployment, show_deployment
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import short

VERBS = Verbs()

DEPLOYMENT = Argument("deployment", "id of the deployment, or the beginning of it")
JOB = Argument("job", "id of the job, or the beginning of it")
DETACH = Flag("detach", "return at once and print the evaluation's id", bool)
GROUP = Flag("group", "only this group; may be repeated", list, value="name")
GLOBAL = Flag("global", "in all regions of the rollout that it is a part of", bool)
WRITE_FLAGS = (DETACH, VERBOSE, JSON)


@VERBS.verb("deployment list", "list deployments", flags=(VERBOSE, JSON, TEMPLATE), regions=Regions.EACH)
def list_(terminal: Terminal, given: Given) -> int:
    found = sorted(all_deployments(terminal), key=lambda one: -one.create_index)
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    terminal.write(deployment_table(found, verbose=given["verbose"]) if found else "No deployments found\n")
    return OK


@VERBS.verb(
    "deployment status",
    "show one deployment, or list them",
    flags=(Flag("monitor", "follow it until it has ended", bool), VERBOSE, JSON, TEMPLATE),
    arguments=(Argument("deployment", DEPLOYMENT.doc, optional=True),),
    regions=Regions.EACH,
)
def status(terminal: Terminal, given: Given) -> int:
    if not given["deployment"]:
        return list_(terminal, given)
    known = find_deployment(terminal, given["deployment"])
    if given["monitor"]:
        return monitor_deployment(terminal, known.id, namespace=known.namespace, verbose=given["verbose"])
    request = DeploymentRequest(deployment_id=known.id)
    found = terminal.client.call(DEPLOYMENT_GET, request, namespace=known.namespace).deployment
    if terminal.formatted(given, lambda: to_api(found)):
        return OK
    show_deployment(terminal, found, verbose=given["verbose"])
    if found.is_multiregion:
        _show_rollout(terminal, found, verbose=given["verbose"])
    if given["verbose"]:
        allocs = terminal.client.call(DEPLOYMENT_ALLOCS, request, namespace=known.namespace).allocs
        terminal.heading("Allocations")
        terminal.write(alloc_table(terminal, allocs, verbose=True) if allocs else "No allocations placed\n")
    return OK


@VERBS.verb(
    "deployment promote",
    "let the canaries of a deployment become ordinary",
    flags=(GROUP, *WRITE_FLAGS),
    arguments=(DEPLOYMENT,),
)
def promote(terminal: Terminal, given: Given) -> int:
    return _promote(terminal, given, find_deployment(terminal, given["deployment"]))


@VERBS.verb(
    "deployment fail",
    "end a deployment as failed",
    doc="Ends a deployment as failed. One that is a part of a rollout through several regions is failed in its region;"
    " what becomes of the others, the job's strategy says. With -global it is failed in all of them.",
    flags=(
        GLOBAL,
        Flag("revert", "with -global: bring the last stable version back, whatever the job's auto_revert says", bool),
        *WRITE_FLAGS,
    ),
    arguments=(DEPLOYMENT,),
)
def fail(terminal: Terminal, given: Given) -> int:
    if given["revert"] and not given["global"]:
        raise BadUsage("-revert goes with -global", hint="in one region, the job's auto_revert decides")
    known = find_deployment(terminal, given["deployment"])
    if given["global"]:
        wanted = RolloutFailRequest(rollout_id=_rollout_id(terminal, known), reverts=given["revert"])
        done = terminal.client.call(ROLLOUT_FAIL, wanted, namespace=known.namespace)
        return _done_everywhere(terminal, given, done, "marked as failed in all regions")
    request = DeploymentRequest(deployment_id=known.id)
    reply = terminal.client.call(DEPLOYMENT_FAIL, request, namespace=known.namespace)
    went_back = reply.reverted_job_version
    more = f', and job "{known.job_id}" went back to version {went_back}' if went_back is not None else ""
    return _done(terminal, given, known, reply, f"marked as failed{more}")


@VERBS.verb("deployment pause", "hold a deployment", flags=WRITE_FLAGS, arguments=(DEPLOYMENT,))
def pause(terminal: Terminal, given: Given) -> int:
    return _pause(terminal, given, is_paused=True)


@VERBS.verb("deployment resume", "let a paused deployment go on", flags=WRITE_FLAGS, arguments=(DEPLOYMENT,))
def resume(terminal: Terminal, given: Given) -> int:
    return _pause(terminal, given, is_paused=False)


@VERBS.verb(
    "deployment unblock",
    "let a deployment that waits for other regions go on",
    doc="Lets a region keep the version that it is healthy with, although its rollout waits for other regions or failed"
    " in some. With -global, all regions that wait.",
    flags=(GLOBAL, *WRITE_FLAGS),
    arguments=(DEPLOYMENT,),
)
def unblock(terminal: Terminal, given: Given) -> int:
    known = find_deployment(terminal, given["deployment"])
    if given["global"]:
        wanted = RolloutUnblockRequest(rollout_id=_rollout_id(terminal, known))
        done = terminal.client.call(ROLLOUT_UNBLOCK, wanted, namespace=known.namespace)
        return _done_everywhere(terminal, given, done, "unblocked in all regions")
    request = DeploymentRequest(deployment_id=known.id)
    reply = terminal.client.call(DEPLOYMENT_UNBLOCK, request, namespace=known.namespace)
    return _done(terminal, given, known, reply, "unblocked")


@VERBS.verb(
    "job promote",
    "let the canaries of a job's latest deployment become ordinary",
    flags=(GROUP, *WRITE_FLAGS),
    arguments=(JOB,),
)
def job_promote(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    request = JobRequest(job_id=stub.id)
    known = terminal.client.call(JOB_LATEST_DEPLOYMENT, request, namespace=stub.namespace).deployment
    if known is None:
        raise NotFound(f'Job "{stub.id}" has no deployment to promote', hint="only jobs with updates have some")
    return _promote(terminal, given, known)


@VERBS.verb(
    "job deployments",
    "list the deployments of a job",
    flags=(Flag("latest", "only the newest, in full", bool), VERBOSE, JSON, TEMPLATE),
    arguments=(JOB,),
    regions=Regions.EACH,
)
def job_deployments(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    request = JobRequest(job_id=stub.id)
    found = terminal.client.call(JOB_DEPLOYMENTS, request, namespace=stub.namespace).deployments
    if given["latest"]:
        found = found[:1]
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    if not found:
        terminal.say("No deployments found")
    elif given["latest"]:
        show_deployment(terminal, found[0], verbose=given["verbose"])
    else:
        terminal.write(deployment_table(found, verbose=given["verbose"]))
    return OK


def _show_rollout(terminal: Terminal, known: Deployment, *, verbose: bool) -> None:
    """The other regions' parts beside this one's."""
    from fedsched.verbs.rollout_view import rollout_of_deployment, show_in_short

    view = rollout_of_deployment(terminal, known)
    if view is None:
        terminal.say("\nIts rollout through the other regions is not known here any more")
    else:
        show_in_short(terminal, view, verbose=verbose)


def _rollout_id(terminal: Terminal, known: Deployment) -> str:
    from fedsched.verbs.rollout_view import rollout_of_deployment

    view = rollout_of_deployment(terminal, known)
    if view is None:
        raise NotFound(
            f'Deployment "{known.id}" is not a part of a rollout that is known here',
            hint="leave -global out; `fedsched operator rollout list` lists rollouts",
        )
    return view.rollout.id


def _done_everywhere(terminal: Terminal, given: Given, reply: RolloutWriteReply, words: str) -> int:
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    rollout = reply.rollout
    if rollout is None:
        terminal.say(f"Rollout {words}")
        return OK
    terminal.say(f'Rollout "{short(rollout.id, verbose=given["verbose"])}" {words}')
    if given["detach"]:
        return OK
    from fedsched.verbs.rollout_follow import follow_rollout

    names = [one.name for one in rollout.regions]
    follow_rollout(terminal, rollout.id, names, namespace=rollout.namespace, verbose=given["verbose"])
    return OK


def _promote(terminal: Terminal, given: Given, known: Deployment) -> int:
    groups = tuple(given["group"])
    request = DeploymentPromoteRequest(deployment_id=known.id, all=not groups, groups=groups)
    reply = terminal.client.call(DEPLOYMENT_PROMOTE, request, namespace=known.namespace)
    return _done(terminal, given, known, reply, "promoted")


def _pause(terminal: Terminal, given: Given, *, is_paused: bool) -> int:
    known = find_deployment(terminal, given["deployment"])
    request = DeploymentPauseRequest(deployment_id=known.id, pause=is_paused)
    reply = terminal.client.call(DEPLOYMENT_PAUSE, request, namespace=known.namespace)
    return _done(terminal, given, known, reply, "paused" if is_paused else "resumed")


def _done(terminal: Terminal, given: Given, known: Deployment, reply: DeploymentWriteReply, words: str) -> int:
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    terminal.say(f'Deployment "{short(known.id, verbose=given["verbose"])}" {words}')
    if not reply.eval_id:
        return OK
    if given["detach"]:
        terminal.say(f"Evaluation ID: {reply.eval_id}")
        return OK
    return monitor(terminal, reply.eval_id, namespace=known.namespace, verbose=given["verbose"])
