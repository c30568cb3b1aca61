"""The list of all verbs, kept as names of modules so that a command imports only its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final, NamedTuple

from fedsched.model.nearest import nearest
from fedsched.verbs.verb import Verb

MODULES: Final[Mapping[str, str]] = {
    "alloc": "fedsched.verbs.alloc",
    "client": "fedsched.verbs.alloc_control",
    "deployment": "fedsched.verbs.deployment",
    "job": "fedsched.verbs.job",
    "eval": "fedsched.verbs.evaluation",
    "namespace": "fedsched.verbs.namespace",
    "node": "fedsched.verbs.node",
    "region": "fedsched.verbs.region",
    "server": "fedsched.verbs.server",
    "service": "fedsched.verbs.service",
    "var": "fedsched.verbs.variable",
    "system": "fedsched.verbs.operator_scheduler",
    "operator": "fedsched.verbs.operator",
    "agent-info": "fedsched.verbs.about",
    "version": "fedsched.verbs.about",
}
"""First word -> the module that declares its verbs."""

MORE: Final[Mapping[tuple[str, str], str]] = {
    ("job", "plan"): "fedsched.verbs.job_plan",
    ("job", "validate"): "fedsched.verbs.job_validate",
    ("job", "init"): "fedsched.verbs.job_validate",
    ("job", "history"): "fedsched.verbs.job_history",
    ("job", "revert"): "fedsched.verbs.job_history",
    ("job", "tag"): "fedsched.verbs.job_history",
    ("job", "dispatch"): "fedsched.verbs.job_launch",
    ("job", "periodic"): "fedsched.verbs.job_launch",
    ("job", "scale"): "fedsched.verbs.job_launch",
    ("job", "scaling-events"): "fedsched.verbs.job_launch",
    ("job", "eval"): "fedsched.verbs.job_launch",
    ("job", "promote"): "fedsched.verbs.deployment",
    ("job", "deployments"): "fedsched.verbs.deployment",
    ("job", "allocs"): "fedsched.verbs.alloc",
    ("job", "why"): "fedsched.verbs.why",
    ("job", "logs"): "fedsched.verbs.alloc_logs",
    ("alloc", "why"): "fedsched.verbs.why",
    ("alloc", "logs"): "fedsched.verbs.alloc_logs",
    ("alloc", "fs"): "fedsched.verbs.alloc_fs",
    ("alloc", "exec"): "fedsched.verbs.alloc_exec",
    ("alloc", "restart"): "fedsched.verbs.alloc_control",
    ("alloc", "signal"): "fedsched.verbs.alloc_control",
    ("alloc", "checks"): "fedsched.verbs.alloc_control",
    ("alloc", "gc"): "fedsched.verbs.alloc_control",
    ("node", "gc"): "fedsched.verbs.alloc_control",
    ("node", "why-not"): "fedsched.verbs.why",
    ("node", "drain"): "fedsched.verbs.node_drain",
    ("node", "eligibility"): "fedsched.verbs.node_drain",
    ("node", "purge"): "fedsched.verbs.node_drain",
    ("node", "pool"): "fedsched.verbs.node_pool",
    ("node", "meta"): "fedsched.verbs.node_meta",
    ("operator", "gossip"): "fedsched.verbs.operator_gossip",
    ("operator", "scheduler"): "fedsched.verbs.operator_scheduler",
    ("operator", "federation"): "fedsched.verbs.region",
    ("operator", "rollout"): "fedsched.verbs.rollout",
}
"""Verbs that another module than that of their first word declares, by their first two words: a command then imports
only what it needs."""

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "run": ("job", "run"),
    "stop": ("job", "stop"),
    "status": ("job", "status"),
    "inspect": ("job", "inspect"),
    "validate": ("job", "validate"),
    "init": ("job", "init"),
    "plan": ("job", "plan"),
    "node-status": ("node", "status"),
    "node-drain": ("node", "drain"),
    "alloc-status": ("alloc", "status"),
    "logs": ("alloc", "logs"),
    "fs": ("alloc", "fs"),
    "exec": ("alloc", "exec"),
    "eval-status": ("eval", "status"),
    "server-members": ("server", "members"),
}
"""Old flat spellings that scripts still use."""


class Group(NamedTuple):
    """Words that are the beginning of several verbs, and those verbs."""

    words: tuple[str, ...]
    verbs: list[Verb]


class Unknown(NamedTuple):
    """Words that mean nothing, and what they may have been meant to be."""

    words: tuple[str, ...]
    suggestion: str


def find(words: Sequence[str], modules: Mapping[str, str] = MODULES) -> tuple[Verb | Group | Unknown, list[str]]:
    """Give what the first words name, and the words after it."""
    rest = list(words)
    first = rest[0]
    if first in ALIASES:
        rest[:1] = ALIASES[first]
        first = rest[0]
    if first not in modules:
        close = nearest(first, sorted({*modules, *ALIASES}))
        return Unknown((first,), close or ""), rest[1:]
    is_ours = modules[first] == MODULES.get(first)
    elsewhere = MORE.get((first, rest[1])) if is_ours and len(rest) > 1 else None
    verbs = _declared(elsewhere, first) if elsewhere else verbs_of(first, modules)
    named = [word for word in rest if not word.startswith("-")]
    for verb in sorted(verbs, key=lambda one: -len(one.words)):
        if tuple(rest[: len(verb.words)]) == verb.words:
            return verb, rest[len(verb.words) :]
    return _group_or_unknown(named, verbs, rest)


def verbs_of(first: str, modules: Mapping[str, str] = MODULES) -> list[Verb]:
    """Give the verbs that begin with a word."""
    is_ours = modules[first] == MODULES.get(first)
    others = {module: None for (word, _), module in MORE.items() if is_ours and word == first}
    return [verb for module in (modules[first], *others) for verb in _declared(module, first)]


def all_verbs(modules: Mapping[str, str] = MODULES) -> list[Verb]:
    """Give everything there is, by name; imports every verb module."""
    return sorted((verb for first in modules for verb in verbs_of(first, modules)), key=lambda verb: verb.words)


def _declared(module: str, first: str) -> list[Verb]:
    declared: list[Verb] = import_module(module).VERBS.all
    return [verb for verb in declared if verb.words[0] == first]


def _group_or_unknown(named: list[str], verbs: list[Verb], rest: list[str]) -> tuple[Group | Unknown, list[str]]:
    known = 0
    inside = verbs
    for word in named:
        narrower = [verb for verb in inside if len(verb.words) > known and verb.words[known] == word]
        if not narrower:
            options = sorted({verb.words[known] for verb in inside if len(verb.words) > known})
            close = nearest(word, options)
            return Unknown(tuple(named[: known + 1]), " ".join([*named[:known], close]) if close else ""), rest
        inside, known = narrower, known + 1
    return Group(tuple(named), inside), rest[known:]
