"""How a rollout looks: its head, and a line for each region."""

from __future__ import annotations

from typing import Any, Final

from fedsched.model.deployment import Deployment
from fedsched.model.errors import FedschedError, NotFound
from fedsched.model.rollout import Rollout, RolloutRegion
from fedsched.rpc.methods.rollout import (
    ROLLOUT_GET,
    ROLLOUT_LIST,
    RolloutGetRequest,
    RolloutListReply,
    RolloutListRequest,
    RolloutView,
)
from fedsched.verbs.lookup import PAGE
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.view import Table, columns, moment, pairs, short

HEAD: Final = ("Region", "Deployment", "Step", "Status", "Error")


def show_rollout(terminal: Terminal, view: RolloutView, *, verbose: bool) -> None:
    """Print all that a region knows of a rollout."""
    rollout = view.rollout
    driver = rollout.owner if view.is_owner else f"{rollout.owner} (as another region last heard it)"
    head: list[tuple[str, Any]] = [
        ("ID", short(rollout.id, verbose=verbose)),
        ("Job ID", rollout.job_id),
        ("Job Version", rollout.job_version),
        ("Namespace", rollout.namespace),
        ("Driven By", driver),
        ("Status", rollout.status.value),
        ("Description", rollout.status_description),
        ("Strategy", strategy_words(rollout)),
        ("Begun", moment(rollout.create_time_ns)),
        ("Last Change", moment(rollout.modify_time_ns)),
    ]
    if verbose:
        head.append(("Epoch", rollout.epoch))
    terminal.write(pairs(head))
    terminal.heading("Regions")
    terminal.write(region_table(rollout, verbose=verbose))


def region_table(rollout: Rollout, *, verbose: bool) -> Table:
    """Give the table of a rollout's regions, in the order of their turns."""
    return columns(HEAD, [_row(one, verbose=verbose) for one in rollout.regions])


def show_in_short(terminal: Terminal, view: RolloutView, *, verbose: bool) -> None:
    """Print a rollout as a section of something else: of its job, or of a deployment that is a part of it."""
    rollout = view.rollout
    terminal.heading("Rollout")
    head = [
        ("ID", short(rollout.id, verbose=verbose)),
        ("Status", rollout.status.value),
        ("Description", rollout.status_description),
        ("Driven By", rollout.owner),
    ]
    terminal.write(pairs(head))
    terminal.heading("Regions")
    terminal.write(region_table(rollout, verbose=verbose))


def rollout_of_job(terminal: Terminal, job_id: str, namespace: str) -> RolloutView | None:
    """The newest rollout of a job; None, with a word about it unless there is none, if it cannot be shown."""
    try:
        return terminal.client.call(ROLLOUT_GET, RolloutGetRequest(job_id=job_id), namespace=namespace)
    except NotFound:
        return None
    except FedschedError as error:
        terminal.warn(f"Error retrieving the rollout: {error.message}")
        return None


def rollout_of_deployment(terminal: Terminal, deployment: Deployment) -> RolloutView | None:
    """The rollout that a deployment is this region's part of; None if it is not known any more."""
    token = ""
    while True:
        request = RolloutListRequest(job_id=deployment.job_id, per_page=PAGE, next_token=token)
        reply: RolloutListReply = terminal.client.call(ROLLOUT_LIST, request, namespace=deployment.namespace)
        for view in reply.rollouts:
            mine = view.share.deployment_id if view.share is not None else ""
            if deployment.id in (mine, *(one.deployment_id for one in view.rollout.regions)):
                return view
        token = reply.next_token
        if not token:
            return None


def strategy_words(rollout: Rollout) -> str:
    """Say in which rhythm regions follow one another."""
    strategy = rollout.strategy
    pace = f"{strategy.max_parallel} at a time" if strategy.max_parallel else "all at once"
    failure = {
        "fail_all": "one that fails takes all along",
        "fail_local": "one that fails fails alone",
    }.get(strategy.on_failure, "one that fails takes later ones along")
    return f"{pace}; {failure}"


def region_words(one: RolloutRegion) -> str:
    """Say how one region stands, for a line of its own."""
    words = one.status.value
    if one.is_skipped:
        words = "skipped, it could not be reached"
    elif one.is_unsure:
        words += " as far as is known"
    return f"{words}: {one.error.removeprefix(f'{words}: ')}" if one.error else words


def _row(one: RolloutRegion, *, verbose: bool) -> tuple[Any, ...]:
    marks = [name for name, is_true in (("skipped", one.is_skipped), ("unsure", one.is_unsure)) if is_true]
    status = f"{one.status.value} ({', '.join(marks)})" if marks else one.status.value
    return (one.name, short(one.deployment_id, verbose=verbose), one.step.value, status, one.error)
