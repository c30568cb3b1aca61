"""Which code a run ran: the version, the commit, and whether the files differ from it.

A seed means the same run only on the same code. git is asked, not needed: an installed package has none, and then the
commit is said to be unknown, with the reason.
"""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from fedsched import __version__

PACKAGE: Final = Path(__file__).resolve().parents[1]
GIT_S: Final = 10.0
FILES_SHOWN: Final = 5


class _NoAnswer(Exception):
    """git cannot say; the text is why."""


@cache
def provenance() -> str:
    """The code of this process. Asked for when a run begins: files may change while it lasts."""
    return f"fedsched {__version__}, {commit_of(PACKAGE)}, Python {platform.python_version()}"


def commit_of(package: Path) -> str:
    """`commit X, clean`, or what differs from it, or why the commit is unknown."""
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")  # somebody else's repository is not ours
        commit = _git(package, "rev-parse", "HEAD").strip()
        changed = _git(package, "status", "--porcelain", "--untracked-files=all", "--", ".").splitlines()
    except _NoAnswer as why:
        return f"commit unknown ({why})"
    if not changed:
        return f"commit {commit}, clean"
    names = [line[3:] for line in changed]
    shown = ", ".join(names[:FILES_SHOWN]) + (", ..." if len(names) > FILES_SHOWN else "")
    return f"commit {commit}, DIRTY: {len(names)} files differ ({shown})"


def _git(package: Path, *arguments: str) -> str:
    """Ask git about the directory, whatever repository the environment names."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=package,
            env={**environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise _NoAnswer("there is no git") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _NoAnswer(f"git does not answer: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _NoAnswer(lines[0] if lines else f"git ended with {done.returncode}")
    return done.stdout
