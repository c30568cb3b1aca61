"""A template from its text to what it renders: read once, filled in as often as its data changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fedsched.model.nearest import nearest
from fedsched.template.data import DATA_FUNCTIONS, Dependency, Inputs
from fedsched.template.errors import Source, TemplateError
from fedsched.template.evaluate import LAZY, TIMES, Evaluator
from fedsched.template.functions import FUNCTIONS
from fedsched.template.parser import CheckName, parse
from fedsched.template.tree import Node
from fedsched.template.values import Budget

SOURCE_CHARS_MAX: Final = 1 << 20
DENIED: Final = ("executeTemplate", "plugin", "writeToFile")
KNOWN: Final = frozenset({*FUNCTIONS, *DATA_FUNCTIONS, *LAZY, *TIMES})
OF_OTHERS: Final = {
    **dict.fromkeys(("key", "keyExists", "keyOrDefault", "ls", "safeLs", "tree", "safeTree"), "nomadVar"),
    **dict.fromkeys(("secret", "secrets", "pkiCert", "caRoots", "caLeaf"), "nomadVar"),
    **dict.fromkeys(("service", "services", "connect", "nodes", "datacenters"), "nomadService"),
}
"""Functions over data of Consul and Vault, and what has the same kind of data here."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What came of one rendering. The text counts only if nothing is missing."""

    text: str
    used: frozenset[Dependency]
    missing: frozenset[Dependency]

    @property
    def is_complete(self) -> bool:
        return not self.missing


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A template that was read."""

    source: Source
    nodes: tuple[Node, ...]
    error_on_missing_key: bool = False

    def render(self, inputs: Inputs, budget: Budget | None = None) -> Rendered:
        """Fill it in; raises `TemplateError`. Never waits and touches nothing."""
        evaluator = Evaluator(self.source, inputs, budget or Budget(), error_on_missing_key=self.error_on_missing_key)
        try:
            text = evaluator.run(self.nodes)
        except RecursionError:
            raise TemplateError(self.source, 0, "values are nested too deeply") from None
        return Rendered(text, frozenset(inputs.used), frozenset(inputs.missing))


def compile_template(
    text: str,
    *,
    name: str = "template",
    left: str = "{{",
    right: str = "}}",
    denied: Collection[str] = DENIED,
    error_on_missing_key: bool = False,
) -> CompiledTemplate:
    """Read a template; raises `TemplateError` with line and column."""
    source = Source(name, text)
    if len(text) > SOURCE_CHARS_MAX:
        raise TemplateError(source, 0, f"the template has {len(text)} characters, at most {SOURCE_CHARS_MAX} are read")
    return CompiledTemplate(source, parse(source, _checker(denied), left=left, right=right), error_on_missing_key)


def _checker(denied: Collection[str]) -> CheckName:
    def check(name: str) -> tuple[str, str] | None:
        if name in denied:
            return f"function {name!r} is disabled", "the operator of this client denies it"
        if name in KNOWN:
            return None
        if name in OF_OTHERS:
            return f"function {name!r} is not available", f"{OF_OTHERS[name]} has the like from this region"
        close = nearest(name, KNOWN - set(denied))
        return f"there is no function {name!r}", f"did you mean {close}?" if close else "see the guide to templates"

    return check
