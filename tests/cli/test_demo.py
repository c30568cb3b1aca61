"""The tour, taken whole: real processes, the project's own regions. It says itself what does not happen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedsched.model.errors import BadRequest
from tests.sizes import LONG

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "fedsched", "demo"]

pytestmark = pytest.mark.processes


def agents_of(directory: Path) -> list[int]:
    """Processes whose command line names a directory."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and str(directory).encode() in Path("/proc", entry, "cmdline").read_bytes():
                found.append(int(entry))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def test_the_tour_shows_all_that_it_promises_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        DEMO,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it happened." in done.stdout
    assert "Rollout is successful" in done.stdout
    assert "us    degraded  2/3" in done.stdout, "the killed leader was seen from the other region"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
    assert agents_of(tmp_path) == []


@pytest.mark.skipif(not os.environ.get(LONG), reason="half of the tour once more; part of `just long`")
def test_a_tour_that_is_broken_off_leaves_nothing_either(tmp_path: Path) -> None:
    process = subprocess.Popen(
        DEMO, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as said:
        for line in said:
            if "job logs -f" in line:  # tasks run by now
                process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130

    assert list(tmp_path.iterdir()) == []
    assert agents_of(tmp_path) == []


def test_a_tour_through_other_regions_is_refused_and_says_which_it_wants(tmp_path: Path) -> None:
    from fedsched.cli.demo import main

    (tmp_path / "far.toml").write_text('name = "far"\n[[servers]]\nname = "far-1"\n')

    with pytest.raises(BadRequest, match="regions far"):
        main(str(tmp_path))
