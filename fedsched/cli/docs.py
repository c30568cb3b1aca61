"""Writes every generated page of the reference: `python -m fedsched.cli.docs [docs/reference]`."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

import fedsched
from fedsched.agent import config_reference
from fedsched.cli import driver_reference, reference
from fedsched.jobspec import reference as jobfile_reference
from fedsched.telemetry import metrics, metrics_text

METRICS_HEAD: Final = """\
Written from the code by `python -m fedsched.cli.docs`; do not edit.

`fedsched operator metrics -format prometheus` shows these with the prefix `fedsched_`, dots as underscores and the unit
appended; names that dashboards for Nomad know are shown under that name as well.
"""


def metrics_page() -> str:
    """List every metric that any module declares; imports them all."""
    for module in pkgutil.walk_packages(fedsched.__path__, "fedsched."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    declared = metrics.catalogue().values()
    title, _, table = metrics_text.reference_page(declared).partition("\n\n")
    return f"{title}\n\n{METRICS_HEAD}\n{table}"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "commands.md": reference.reference_page,
    "config.md": config_reference.reference_page,
    "drivers.md": driver_reference.reference_page,
    "jobfile.md": jobfile_reference.reference_page,
    "metrics.md": metrics_page,
}


def main(directory: str = "docs/reference") -> None:
    for name, write in PAGES.items():
        path = Path(directory) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(write())
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
