"""What one command said in several regions, laid side by side.

Where every region gave a table, or a line in its place ("No running jobs"), there is one table with a column for the
region, and whoever gave none has a row with that line. Anything longer is shown in blocks, each with its region's name
over it. Pure: text in, text out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from fedsched.verbs.view import NONE, Table, columns, width

HEAD: Final = "Region"


class Part(NamedTuple):
    """What came out in one region."""

    region: str
    pieces: Sequence[str]
    """Tables and other text, as they were written."""
    error: str = ""
    """What went wrong instead, if anything did."""


def side_by_side(parts: Sequence[Part], bold: Callable[[str], str]) -> str:
    """Give the text of all, in the order of the parts."""
    lines = _rows(parts)
    return lines if lines is not None else _blocks(parts, bold)


def _rows(parts: Sequence[Part]) -> str | None:
    """One table, or one line for each region; None where neither would hold what was said."""
    tables = {part.region: table for part in parts if (table := _only_table(part)) is not None}
    heads = {table.head for table in tables.values()}
    if len(heads) > 1 or not all(part.region in tables or _line(part) is not None for part in parts):
        return None
    pad = max(width(name) for name in (HEAD, *(part.region for part in parts)))
    if not tables:
        pad = max(width(part.region) for part in parts)
    names = {part.region: part.region + " " * (pad - width(part.region)) for part in parts}
    rows = [[names[part.region], *row] for part in parts for row in _cells(tables, part)]
    shown: list[str] = []
    if tables:
        top, *left = columns((HEAD + " " * (pad - width(HEAD)), *heads.pop()), rows).splitlines()
        shown.append(top)
    for part in parts:
        count = len(_cells(tables, part))
        shown += left[:count] if count else [f"{names[part.region]}  {_line(part) or NONE}"]
        if count:
            left = left[count:]
    return "".join(f"{line}\n" for line in shown)


def _blocks(parts: Sequence[Part], bold: Callable[[str], str]) -> str:
    blocks = []
    for part in parts:
        text = "".join(part.pieces).strip("\n")
        said = [text] if text else []
        if part.error:
            said.append(f"Error: {part.error}")
        blocks.append("\n".join([bold(f'{HEAD}: "{part.region}"'), *(said or [NONE])]) + "\n")
    return "\n".join(blocks)


def _only_table(part: Part) -> Table | None:
    only = part.pieces[0] if len(part.pieces) == 1 and not part.error else None
    return only if isinstance(only, Table) else None


def _cells(tables: dict[str, Table], part: Part) -> list[list[str]]:
    return tables[part.region].rows if part.region in tables else []


def _line(part: Part) -> str | None:
    """What stands in for a table, if it is no more than a line; empty for a table without rows."""
    if _only_table(part) is not None:
        return ""
    text = f"Error: {part.error}" if part.error else "".join(part.pieces).strip("\n")
    is_one = "\n" not in text and not (part.error and part.pieces)
    return text if is_one else None
