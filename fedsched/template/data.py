"""What a template can ask for beside its arguments, and what it got so far.

A rendering never waits. It looks data up in what was fetched before; what is not there is noted as missing, and the
rendering is done again once it has come. So the set of things that a template depends on is found by running it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from fedsched.model.service import ServiceRegistration
from fedsched.model.variable import Variable, VariableMetadata
from fedsched.template.errors import Wrong
from fedsched.template.values import shown, text_of

DEPENDENCIES_MAX: Final = 256
"""Things that one template may depend on: each of them is a query that waits at a server."""


class DataKind(StrEnum):
    VARIABLE = "nomad.var"
    VARIABLES = "nomad.var.list"
    SERVICE = "nomad.service"
    SERVICES = "nomad.services"


@dataclass(frozen=True, slots=True, order=True)
class Dependency:
    """One thing that is fetched from servers and watched."""

    kind: DataKind
    key: str = ""
    choose: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}({self.key})"


class Items(dict[str, str]):
    """The items of a variable, by name; a name that is not among them is a fact about the variable."""

    def __init__(self, variable: Variable) -> None:
        super().__init__(sorted(variable.items.items()))
        self.facts: dict[str, Any] = {
            "Keys": list(self),
            "Values": list(self.values()),
            "Items": dict(self),
            "Tuples": [{"Key": key, "Value": value} for key, value in self.items()],
            "Metadata": metadata_fields(variable.metadata),
        }


class Fields(dict[str, Any]):
    """A record with fixed fields: one that it does not have is a mistake, not an absence."""


def metadata_fields(found: VariableMetadata) -> Fields:
    return Fields(
        Namespace=found.namespace,
        Path=found.path,
        CreateIndex=found.create_index,
        ModifyIndex=found.modify_index,
        CreateTime=found.create_time_ns,
        ModifyTime=found.modify_time_ns,
    )


def service_fields(found: ServiceRegistration) -> Fields:
    return Fields(
        ID=found.id,
        Name=found.service_name,
        Namespace=found.namespace,
        Node=found.node_id,
        NodeID=found.node_id,
        Datacenter=found.datacenter,
        JobID=found.job_id,
        AllocID=found.alloc_id,
        Address=found.address,
        Port=found.port,
        Tags=list(found.tags),
    )


@dataclass(slots=True)
class Inputs:
    """What one rendering works with."""

    fetched: Mapping[Dependency, Any]
    """Values of what has been fetched: `Variable | None`, lists of records."""
    lookup: Callable[[str], str | None] = lambda _: None
    """Environment and node: `NOMAD_PORT_http`, `node.datacenter`, `attr.kernel.name`."""
    read_file: Callable[[str], str] | None = None
    now_ns: int = 0
    used: set[Dependency] = field(default_factory=set)
    missing: set[Dependency] = field(default_factory=set)

    def ask(self, dependency: Dependency) -> tuple[bool, Any]:
        """Whether it was fetched, and its value."""
        self.used.add(dependency)
        if len(self.used) > DEPENDENCIES_MAX:
            raise Wrong(f"it depends on more than {DEPENDENCIES_MAX} things", is_limit=True)
        if dependency not in self.fetched:
            self.missing.add(dependency)
            return False, None
        return True, self.fetched[dependency]


def _variable(inputs: Inputs, path: Any) -> Items | None:
    dependency = Dependency(DataKind.VARIABLE, _path(path))
    _, found = inputs.ask(dependency)
    if found is None:
        inputs.missing.add(dependency)  # the task waits until there is one
        return None
    return Items(found)


def _variable_exists(inputs: Inputs, path: Any) -> bool:
    return inputs.ask(Dependency(DataKind.VARIABLE, _path(path)))[1] is not None


def _variable_list(inputs: Inputs, prefix: Any = "") -> list[Fields]:
    _, found = inputs.ask(Dependency(DataKind.VARIABLES, _path(prefix, is_prefix=True)))
    return [metadata_fields(one) for one in found or ()]


def _variable_list_safe(inputs: Inputs, prefix: Any = "") -> list[Fields]:
    found = _variable_list(inputs, prefix)
    if not found:
        inputs.missing.add(Dependency(DataKind.VARIABLES, _path(prefix, is_prefix=True)))
    return found


def _service(inputs: Inputs, *arguments: Any) -> list[Fields]:
    """`nomadService "web"`, `nomadService "tag.web"`, or `nomadService 2 "key" "web"`."""
    choose = ""
    if len(arguments) == 3:
        count, key, name = arguments
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise Wrong(f"{shown(count)[:20]} is not how many to choose")
        choose = f"{count}|{text_of(key, 'the key')}"
    elif len(arguments) == 1:
        (name,) = arguments
    else:
        raise Wrong("it takes a name, or a number, a key and a name")
    name = text_of(name, "the name of the service")
    if not name or "@" in name:
        raise Wrong(f"{name[:60]!r} names no service of this region and namespace")
    tag, _, plain = name.rpartition(".")
    _, found = inputs.ask(Dependency(DataKind.SERVICE, plain, choose))
    return [service_fields(one) for one in found or () if not tag or tag in one.tags]


def _services(inputs: Inputs) -> list[Fields]:
    _, found = inputs.ask(Dependency(DataKind.SERVICES))
    return [Fields(Name=name, Tags=list(tags)) for name, tags in found or ()]


def _env(inputs: Inputs, name: Any) -> str:
    return inputs.lookup(text_of(name, "the name")) or ""


def _env_or(inputs: Inputs, name: Any, default: Any) -> str:
    found = inputs.lookup(text_of(name, "the name"))
    return found if found is not None else text_of(default, "the default")


def _must_env(inputs: Inputs, name: Any) -> str:
    found = inputs.lookup(text_of(name, "the name"))
    if found is None:
        raise Wrong(f"{name[:60]!r} is not set")
    return found


def _of_node(prefix: str) -> Callable[..., str]:
    def function(inputs: Inputs, name: Any) -> str:
        return inputs.lookup(f"{prefix}.{text_of(name, 'the name')}") or ""

    return function


def _file(inputs: Inputs, path: Any) -> str:
    if inputs.read_file is None:
        raise Wrong("files cannot be read here")
    return inputs.read_file(text_of(path, "the path"))


def _path(path: Any, *, is_prefix: bool = False) -> str:
    text = text_of(path, "the path")
    if "@" in text:
        raise Wrong(f"{text[:60]!r}: variables of other namespaces and regions are not for tasks")
    if not text and not is_prefix:
        raise Wrong("the path of the variable is empty")
    return text


DATA_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "attr": _of_node("attr"),
    "env": _env,
    "envOrDefault": _env_or,
    "file": _file,
    "meta": _of_node("meta"),
    "mustEnv": _must_env,
    "node": _of_node("node"),
    "nomadService": _service,
    "nomadServices": _services,
    "nomadVar": _variable,
    "nomadVarExists": _variable_exists,
    "nomadVarList": _variable_list,
    "nomadVarListSafe": _variable_list_safe,
}
