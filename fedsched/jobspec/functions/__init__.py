"""The functions of the job language. Importing this package gathers them all in `FUNCTIONS`."""

from __future__ import annotations

from fedsched.jobspec.functions import (
    crypto,
    dates,
    encoding,
    files,
    flow,
    formatting,
    lists,
    maps,
    networks,
    numeric,
    patterns,
    sets,
    strings,
    yaml_text,
)
from fedsched.jobspec.functions.registry import FUNCTIONS

__all__ = [
    "FUNCTIONS",
    "crypto",
    "dates",
    "encoding",
    "files",
    "flow",
    "formatting",
    "lists",
    "maps",
    "networks",
    "numeric",
    "patterns",
    "sets",
    "strings",
    "yaml_text",
]
