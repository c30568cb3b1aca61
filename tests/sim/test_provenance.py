"""A failing seed names the code it failed on, with git and without."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from fedsched import __version__
from fedsched.sim import provenance as module
from fedsched.sim.provenance import PACKAGE, commit_of, provenance


def git(directory: Path, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    named = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *named, *arguments], cwd=directory, env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A repository with a package in it, committed."""
    package = tmp_path / "fedsched"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "notes.md").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return package


def test_a_clean_tree_is_its_commit(package: Path) -> None:
    assert commit_of(package) == f"commit {git(package, 'rev-parse', 'HEAD')}, clean"


def test_only_what_runs_can_make_it_dirty(package: Path) -> None:
    (package.parent / "notes.md").write_text("changed")
    assert commit_of(package).endswith(", clean")

    (package / "__init__.py").write_text("changed = True")
    (package / "new.py").write_text("")

    assert commit_of(package) == (
        f"commit {git(package, 'rev-parse', 'HEAD')}, DIRTY: 2 files differ (fedsched/__init__.py, fedsched/new.py)"
    )


def test_a_long_list_of_changes_is_cut(package: Path) -> None:
    for number in range(9):
        (package / f"m{number}.py").write_text("")

    text = commit_of(package)

    assert "DIRTY: 9 files differ (fedsched/m0.py, " in text
    assert text.endswith("fedsched/m4.py, ...)")


def test_the_repository_of_somebody_else_says_nothing_about_us(package: Path) -> None:
    installed = package.parent / "site-packages" / "fedsched"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")

    assert commit_of(installed).startswith("commit unknown (")


def test_where_the_environment_points_does_not_matter(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")

    assert commit_of(package).endswith(", clean")


def test_without_git_or_a_repository_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit_of(tmp_path).startswith("commit unknown (")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) == "commit unknown (there is no git)"


def test_a_git_that_hangs_or_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "git"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    assert commit_of(tmp_path) == "commit unknown (git ended with 3)"

    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(module, "GIT_S", 0.1)
    assert commit_of(tmp_path).startswith("commit unknown (git does not answer: ")


def test_the_whole_line_names_version_commit_and_interpreter() -> None:
    line = provenance()

    assert line.startswith(f"fedsched {__version__}, commit ")
    assert line.endswith(f", Python {platform.python_version()}")
    assert PACKAGE.name == "fedsched"
