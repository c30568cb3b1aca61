"""The tree keeps its own rules: layout, pinned requirements, docstrings, module size, one door to each choice."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "fedsched").rglob("*.py"))
TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "Justfile",
    "LICENSE",
    "README.md",
    "dev",
    "docs",
    "fedsched",
    "fixtures",
    "pyproject.toml",
    "regions",
    "requirements-dev.txt",
    "requirements.txt",
    "tests",
}
LONGEST_MODULE = 600
ONLY_IMPORTER = {
    "cbor2": {"fedsched/codec/cbor.py"},
    "sqlite3": {"fedsched/raft/storage.py", "fedsched/client/journal_store.py"},
    "trio_websocket": {"fedsched/wire/websocket.py"},
}
"""Outside choices that one module may name, so that a swap is one module and its tests."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_the_top_level_holds_nothing_unexpected() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert {line.split("/")[0] for line in listed.splitlines()} <= TOP_LEVEL


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_requirements_carry_versions_and_hashes_and_name_no_host(file: str) -> None:
    text = (ROOT / file).read_text()
    pins = re.findall(r"^[a-zA-Z0-9._-]+==[^ \\]+", text, flags=re.MULTILINE)

    assert len(pins) > 5
    assert "://" not in text
    for block in re.split(r"\n(?=[a-zA-Z])", text.strip()):
        assert "--hash=sha256:" in block, block


def test_runtime_pins_are_the_same_in_both_requirement_files() -> None:
    def pins(file: str) -> dict[str, str]:
        found = re.findall(r"^([a-zA-Z0-9._-]+)==([^ ;\\]+)", (ROOT / file).read_text(), flags=re.MULTILINE)
        return dict(found)

    runtime, development = pins("requirements.txt"), pins("requirements-dev.txt")

    assert {name: development.get(name) for name in runtime} == runtime


def test_every_package_has_its_line_in_the_import_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    named = {name.strip("() ") for line in contract["layers"] for name in line.split("|")}
    packages = {path.parent.name for path in (ROOT / "fedsched").glob("*/__init__.py")}

    assert packages <= named


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_for_and_stays_readable(path: Path) -> None:
    text = path.read_text()

    assert ast.get_docstring(ast.parse(text)), "no module docstring"
    assert len(text.splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("library", sorted(ONLY_IMPORTER))
def test_an_outside_choice_is_named_in_one_place(library: str) -> None:
    importers = {name_of(path) for path in MODULES if library in imported(path)}

    assert importers <= ONLY_IMPORTER[library]


def test_no_memory_channel_is_unbounded() -> None:
    unbounded = [
        name_of(path) for path in MODULES if re.search(r"open_memory_channel(\[.*\])?\((math\.)?inf", path.read_text())
    ]

    assert unbounded == []
