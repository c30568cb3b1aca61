"""Commands over several regions on real processes, one of which is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from fedsched.agent.process import server_processes

pytestmark = pytest.mark.processes

WITHIN_S = 30.0


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        return [line.split() for line in self.out.splitlines()]


def test_a_killed_region_is_a_row_with_its_error_and_the_others_are_as_before(tmp_path: Path) -> None:
    with ExitStack() as stack:
        (eu,) = server_processes(["s1"], tmp_path, region="eu")
        (tmp_path / "far").mkdir()
        join = f'retry_join_wan = ["127.0.0.1:{eu.serf_port}"]\n'
        (us,) = server_processes(["s1"], tmp_path / "far", region="us", extra=join)
        for server in (eu, us):
            stack.callback(server.stop)
            server.start()

        def fedsched(*words: str) -> Said:
            command = [sys.executable, "-m", "fedsched", *words]
            environ = {**os.environ, "FEDSCHED_ADDR": eu.address}
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
            return Said(done.returncode, done.stdout, done.stderr)

        def know_each_other() -> bool:
            return [row[:2] for row in fedsched("namespace", "list", "-region", "*").rows[1:]] == [
                ["eu", "default"],
                ["us", "default"],
            ]

        eu.wait_until(know_each_other, "both regions answer", patience_s=WITHIN_S)
        assert fedsched("region", "list").code == 0

        us.kill()

        listed = fedsched("namespace", "list", "-region", "us,eu")
        assert listed.code == 2
        assert listed.rows[2][:2] == ["eu", "default"]
        assert listed.out.splitlines()[1].startswith("us      Error: No path to region 'us'")
        assert listed.err == "1 of 2 regions did not answer: us\n"
        found = json.loads(fedsched("namespace", "list", "-region", "us,eu", "-json").out)
        assert (list(found["us"]), list(found["eu"])) == (["Error"], ["Answer"])
        assert found["us"]["Error"]["Code"] == "no_path_to_region"
        alone = fedsched("namespace", "list", "-region", "us")
        assert (alone.code, alone.out) == (1, "")
        eu.wait_until(
            lambda: fedsched("operator", "federation", "status").code == 1, "its death is known", patience_s=WITHIN_S
        )
