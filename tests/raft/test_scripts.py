"""Every script under fixtures/raft says what happens when it is replayed today."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.raft.script import replay, script_files


@pytest.mark.parametrize("path", script_files(), ids=lambda path: path.stem)
def test_script_observes_what_it_says(path: Path) -> None:
    written = path.read_text()

    observed = replay(written)

    if os.environ.get("FEDSCHED_REWRITE"):
        path.write_text(observed)
    else:
        assert observed == written


def test_there_are_scripts() -> None:
    assert len(script_files()) >= 20


def test_replay_notices_a_wrong_observation() -> None:
    assert replay("servers 1\nelect 1\n----\n1 nothing\n") != "servers 1\nelect 1\n----\n1 nothing\n"
