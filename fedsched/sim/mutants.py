"""Plants deliberate bugs and demands that the simulator finds each of them: the test of the test.

A mutant is a patch of source text. It is applied to a private copy of the module while it is imported, in a process of
its own; nothing on disk changes. Every old text must occur exactly once: a patch that no longer fits is noticed instead
of planting nothing. A mutant that outlives its budget means that the simulator is too weak, not that the bug is fine.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple


class Patch(NamedTuple):
    """In this module, this text instead of that."""

    module: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One planted bug."""

    name: str
    what: str
    patches: tuple[Patch, ...]
    theme: str = ""
    """Look for it only in seeds of this theme: the others hardly ever get near it."""


class PatchFailed(Exception):
    """A patch does not fit the source any more: the mutant would plant nothing."""


def patched_source(module: str, patches: Sequence[Patch]) -> str:
    """The module's source with those of the patches that concern it; raises `PatchFailed`."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"no module {module}"
    assert spec.origin is not None, f"no source for {module}"
    source = Path(spec.origin).read_text()
    for patch in patches:
        if patch.module == module:
            if source.count(patch.old) != 1:
                raise PatchFailed(
                    f"{module} has {source.count(patch.old)} places that read {patch.old!r}; expected one"
                )
            source = source.replace(patch.old, patch.new)
    return source


def plant(mutant: Mutant) -> None:
    """Have every later import of the patched modules get the bug. They must not be imported yet."""
    modules = {patch.module for patch in mutant.patches}
    loaded = sorted(modules & sys.modules.keys())
    if loaded:
        raise PatchFailed(f"{', '.join(loaded)} was imported before the bug could be planted")
    sys.meta_path.insert(0, _Planter(mutant))


class _Planter(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._sources = {}
        for module in {patch.module for patch in mutant.patches}:
            self._sources[module] = patched_source(module, mutant.patches)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._sources:
            return None
        real = PathFinder.find_spec(fullname, path, target)
        assert real is not None
        return importlib.util.spec_from_loader(fullname, _Loader(self._sources[fullname], real.origin or ""))


class _Loader(SourceLoader):
    def __init__(self, source: str, origin: str) -> None:
        self._source = source
        self._origin = origin

    def get_filename(self, fullname: str) -> str:
        return self._origin

    def get_data(self, path: str | bytes) -> bytes:
        return self._source.encode()

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError("a planted module is never cached")
