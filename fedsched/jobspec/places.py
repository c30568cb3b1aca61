"""Where in the file each part of a job was said, found again by its path in the job.

Checks of a whole job know paths (`TaskGroups[0].Tasks[1].Driver`), not lines. While a file is decoded, every member of
the growing tree leaves its span here, under the identity of the dict that holds it: so parts may move about in the tree
(a port among the reserved ones, an inherited secret in each task) and are still found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fedsched.jobspec.source import Span

Tree = dict[str, Any]

_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")


class Places:
    """The spans of one decoded file."""

    def __init__(self) -> None:
        self._spans: dict[int, dict[str, Span]] = {}
        self._damaged: set[tuple[int, str]] = set()
        self._kept: list[Tree] = []
        """Keeps the dicts alive whose identity is used."""

    def begin(self, tree: Tree, header: Span) -> None:
        """Note a block: what is missing inside is reported at its header."""
        self._kept.append(tree)
        self._spans[id(tree)] = {"": header}

    def follow(self, tree: Tree, other: Tree) -> None:
        """Note a block that nobody wrote: it stands where another does."""
        self._kept.append(tree)
        self._spans[id(tree)] = self._spans[id(other)]

    def note(self, tree: Tree, name: str, span: Span) -> None:
        self._spans[id(tree)][name] = span

    def moved(self, tree: Tree, name: str, before: str) -> None:
        """A member now has another name."""
        spans = self._spans[id(tree)]
        if before in spans:
            spans[name] = spans[before]

    def damage(self, tree: Tree, name: str = "") -> None:
        """A member (or the whole block) was refused already: whatever else seems wrong with it follows from that."""
        self._damaged.add((id(tree), name))

    def span_of(self, root: Tree, path: str) -> Span | None:
        """The span of what the path names, or of the nearest thing around it."""
        best: Span | None = None
        for holder, name in self._steps(root, path):
            spans = self._spans.get(id(holder), {})
            best = spans.get(name) or spans.get("") or best
        return best

    def is_said(self, root: Tree, path: str) -> bool:
        """Whether the file says exactly this, rather than something around it."""
        steps = list(_STEP.finditer(path))
        here: Any = root
        for step in steps:
            name = step[1] or step[3] or step[4]
            if isinstance(here, list) and step[2] and int(step[2][:9]) < len(here):
                here = here[int(step[2])]
            elif isinstance(here, dict) and name in here:
                here = here[name]
            else:
                return False
        return True

    def is_damaged(self, root: Tree, path: str) -> bool:
        """Whether the path leads through something that was refused."""
        return any(
            (id(holder), name) in self._damaged or (id(holder), "") in self._damaged
            for holder, name in self._steps(root, path)
        )

    def _steps(self, root: Tree, path: str) -> Iterator[tuple[Tree, str]]:
        """Walk down the tree; each step is a dict and the member taken from it (empty: the dict itself)."""
        here: Any = root
        yield root, ""
        for step in _STEP.finditer(path):
            name = step[1] or step[3] or step[4]
            if isinstance(here, list) and step[2] and int(step[2][:9]) < len(here):
                here = here[int(step[2])]
            elif isinstance(here, dict) and name:
                yield here, name
                here = here.get(name)
            else:
                return
            if isinstance(here, dict):
                yield here, ""
