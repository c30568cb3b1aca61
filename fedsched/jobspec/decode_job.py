"""The job block: its own name, tasks without a group, and what groups and tasks inherit."""

from __future__ import annotations

from typing import Any

from fedsched.jobspec.context import Context
from fedsched.jobspec.decode import Decoder
from fedsched.jobspec.problems import Problem
from fedsched.jobspec.schema_blocks import JOB
from fedsched.jobspec.tree import Block

Tree = dict[str, Any]


def decode_job(decoder: Decoder, block: Block, context: Context) -> Tree:
    """Give the job in the API form: what was said, and the few defaults that hold before anything else is known."""
    job = decoder.block(block, JOB, context)
    _name(decoder, job, block)
    _wrap_lone_tasks(decoder, job)
    _hand_down(job)
    return job


def _name(decoder: Decoder, job: Tree, block: Block) -> None:
    label = block.labels[0] if block.labels else None
    if label is None:
        decoder.report(Problem("Missing name for job", 'write job "name" { ... }.', block.brace_span))
        decoder.places.damage(job, "ID")
        decoder.places.damage(job, "Name")
    for extra in block.labels[1:]:
        decoder.report(Problem("Extraneous label for job", "a job has one label, its name.", extra.span))
    for name in ("ID", "Name"):
        if name not in job:
            job[name] = label.text if label else ""
            if label is not None:
                decoder.places.note(job, name, label.span)


def _wrap_lone_tasks(decoder: Decoder, job: Tree) -> None:
    """A task directly under the job gets a group of its own name; those come before the others."""
    groups = []
    for task in job.pop("Tasks", []):
        group = {"Name": task["Name"], "Tasks": [task]}
        decoder.places.follow(group, task)
        groups.append(group)
    if groups or "TaskGroups" in job:
        job["TaskGroups"] = groups + job.get("TaskGroups", [])


def _hand_down(job: Tree) -> None:
    """Vault: the nearest level's block counts, whole. Secrets add up, the task's own first."""
    vault, secrets = job.pop("Vault", None), job.pop("Secrets", [])
    for group in job.get("TaskGroups", []):
        group_vault = group.pop("Vault", vault)
        inherited = group.pop("Secrets", []) + secrets
        for task in group.get("Tasks", []):
            if "Vault" not in task and group_vault is not None:
                task["Vault"] = group_vault
            if inherited:
                task["Secrets"] = task.get("Secrets", []) + inherited
