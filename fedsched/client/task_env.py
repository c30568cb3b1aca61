"""The environment of a task: what is computed, what the job says, what hooks add, and how `${...}` is read.

Later beats earlier (`NOMAD_` names for jobs that know them, each also as `FEDSCHED_`):

1. what is computed from allocation, node and job: directories, limits, names, ports, addresses of sibling tasks, meta;
2. the agent's own environment, for drivers that hand it on, less what is denied: only names that are not set yet;
3. the task's `env`, its values resolved in the order in which they need one another;
4. what hooks add (tokens, devices);
5. what templates render as environment.

Names of variables keep letters, digits and underscores; anything else becomes an underscore.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from fedsched.client.context import TaskContext
from fedsched.client.hooks.hook import HookFailed
from fedsched.client.interpolate import clean_name, interpolate, resolve_all
from fedsched.client.task_env_computed import computed_values
from fedsched.model.errors import BadRequest
from fedsched.model.node import Node

INVALID: Final = "Failed Validation"
VALUE_BYTES_MAX: Final = 128 * 1024 - 1
"""One `NAME=value` with its end must fit into 32 pages: Linux starts nothing beyond."""
ENV_BYTES_MAX: Final = 1 << 20
"""All of it; Linux gives arguments and environment a quarter of the stack, 2 MiB, and arguments need theirs."""
VARIABLES_MAX: Final = 4096
UTF8_MAX: Final = 4
"""Bytes that one character takes at most."""
CONFIG_DEPTH_MAX: Final = 64

NEVER_PASSED: Final = (
    "CONSUL_TOKEN",
    "CONSUL_HTTP_TOKEN",
    "CONSUL_HTTP_TOKEN_FILE",
    "NOMAD_TOKEN",
    "FEDSCHED_TOKEN",
    "VAULT_TOKEN",
    "CONSUL_LICENSE",
    "CONSUL_LICENSE_PATH",
    "NOMAD_LICENSE",
    "NOMAD_LICENSE_PATH",
    "VAULT_LICENSE",
    "VAULT_LICENSE_PATH",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_METADATA_URL",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_OAUTH_ACCESS_TOKEN",
)
"""Variables of the agent that no task ever sees: they open doors that are not the task's."""


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """What a task sees, and the reading of texts that refer to it or to its node."""

    values: dict[str, str]
    node_values: Mapping[str, str]
    """`node.datacenter`, `attr.kernel.name`, `meta.rack`..."""

    def text(self, value: str) -> str:
        """Put values in place of `${...}`; unknown names stay as written."""
        return interpolate(value, self.lookup)[0]

    def config(self, value: Any) -> Any:
        """The same for a driver's settings, at any depth: an unknown name is an error, because a task that starts with
        half a command line does something nobody asked for.
        """
        return self._config(value, "config", 0)

    def lookup(self, name: str) -> str | None:
        """The value of one name, as it stands between the braces."""
        if (found := self.node_values.get(name)) is not None:
            return found
        plain = name.removeprefix("env.")
        found = self.values.get(plain)
        return found if found is not None else self.values.get(clean_name(plain))

    def _config(self, value: Any, where: str, depth: int) -> Any:
        if depth > CONFIG_DEPTH_MAX:
            raise _invalid(f"{where[:200]} is nested deeper than {CONFIG_DEPTH_MAX}", hint="")
        if isinstance(value, str):
            text, missing = interpolate(value, self.lookup)
            if missing:
                raise _invalid(
                    f"{where[:200]} refers to {', '.join(sorted(set(missing)))[:200]}, which has no value",
                    hint="a plain ${...} is written $$${...} in a job file",
                )
            return text
        if isinstance(value, Mapping):
            return {key: self._config(one, f"{where}.{key}", depth + 1) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._config(one, f"{where}[{number}]", depth + 1) for number, one in enumerate(value)]
        return value


def task_environment(task: TaskContext) -> TaskEnvironment:
    """The environment as it is now, with all that hooks have added so far.

    `HookFailed` (event `Failed Validation`) for values in a circle, and for more than a process can be started with.
    """
    nodes = _NODE_VALUES.of(task.parts.node(), task.parts.region)
    values = computed_values(task, nodes)
    if task.driver.capabilities.takes_host_env:
        host = task.parts.host_env
        if host is None:
            host = host_environment(os.environ, task.parts.settings.env_denylist)
        values = {**host, **values}
    values |= _own_env(task, TaskEnvironment(values, nodes))
    for added in (task.hook_env, task.template_env):
        values |= _with_twins(_cleaned(added.items()))
    _refuse_huge(values)
    return TaskEnvironment(values, nodes)


def node_values(node: Node, region: str) -> dict[str, str]:
    """What a text may ask about the node."""
    values = {
        "node.unique.id": node.id,
        "node.unique.name": node.name,
        "node.datacenter": node.datacenter,
        "node.region": region,
        "node.class": node.node_class,
        "node.pool": node.node_pool,
    }
    values |= {f"attr.{name}": value for name, value in node.attributes.items()}
    values |= {f"meta.{name}": value for name, value in node.meta.items()}
    return values


class _NodeValues:
    """Those of the node that was asked about last: it is the same one for all tasks of a host, until it changes."""

    def __init__(self) -> None:
        self._last: tuple[Node, str, dict[str, str]] | None = None

    def of(self, node: Node, region: str) -> Mapping[str, str]:
        last = self._last
        if last is None or last[0] is not node or last[1] != region:
            last = self._last = (node, region, node_values(node, region))
        return last[2]


_NODE_VALUES: Final = _NodeValues()


def host_environment(environ: Mapping[str, str], denied: Iterable[str] = ()) -> dict[str, str]:
    """The agent's environment without what tasks must not see."""
    patterns = tuple(denied)
    return {
        name: value
        for name, value in environ.items()
        if name not in NEVER_PASSED and not any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _own_env(task: TaskContext, so_far: TaskEnvironment) -> dict[str, str]:
    own = dict(task.task.env)
    try:
        resolved = resolve_all(own, so_far.lookup, ENV_BYTES_MAX)
    except BadRequest as error:
        raise _invalid(f"env of task {task.name!r}: {error.message}", hint=error.hint) from None
    return _cleaned((so_far.text(name), value) for name, value in resolved.items())


def _cleaned(values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """With names that a process can have. Of two that become the same, the one that was so already wins."""
    found: dict[str, str] = {}
    exact: dict[str, str] = {}
    for name, value in values:
        clean = clean_name(name)
        (exact if clean == name else found)[clean] = value
    return found | exact


def _with_twins(values: dict[str, str]) -> dict[str, str]:
    twins = {f"FEDSCHED_{name[6:]}": value for name, value in values.items() if name.startswith("NOMAD_")}
    return twins | values


def _refuse_huge(values: Mapping[str, str]) -> None:
    if len(values) > VARIABLES_MAX:
        raise _invalid(f"the environment has {len(values)} variables, at most {VARIABLES_MAX} are possible", hint=_LESS)
    names, texts = "".join(values), "".join(values.values())
    if (len(names) + len(texts) + 2 * len(values)) * UTF8_MAX <= VALUE_BYTES_MAX and "\0" not in texts:
        return  # nearly always
    total = 0
    for name, value in values.items():
        size = _size(name) + _size(value) + 2
        if "\0" in value:
            raise _invalid(f"the value of {name[:80]!r} holds a NUL character", hint="environments cannot have it")
        if size > VALUE_BYTES_MAX:
            raise _invalid(
                f"variable {name[:80]!r} takes {size} bytes, at most {VALUE_BYTES_MAX} are possible", hint=_LESS
            )
        total += size
    if total > ENV_BYTES_MAX:
        raise _invalid(f"the environment takes {total} bytes, at most {ENV_BYTES_MAX} are possible", hint=_LESS)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogateescape"))


_LESS: Final = "put large values into a file with a template or an artifact"


def _invalid(message: str, *, hint: str) -> HookFailed:
    return HookFailed(message, hint=hint, event=INVALID)
