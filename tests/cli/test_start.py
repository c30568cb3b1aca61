from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedsched.agent.config import AgentConfig
from fedsched.agent.region_file import RegionFile
from fedsched.bench import frame
from fedsched.cli.command import run
from fedsched.verbs.terminal import Terminal


def fedsched(line: str, environ: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    return run(shlex.split(line), Terminal(out, err, io.StringIO(), environ or {})), out.getvalue(), err.getvalue()


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[AgentConfig]:
    """The settings that agents were started with; nothing really starts."""
    configs: list[AgentConfig] = []

    def run_agent(config: AgentConfig, *, is_dev: bool, load: Callable[[], AgentConfig]) -> int:
        assert load() == config  # what SIGHUP reads is what the start has read
        assert is_dev == (config.data_dir != "/d")
        assert Path(config.data_dir).is_dir() or config.data_dir == "/d"
        configs.append(config)
        return 3

    stand_in(monkeypatch, "fedsched.agent.main", run_agent=run_agent)
    return configs


def test_agent_gathers_files_environment_and_flags(started: list[AgentConfig], tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('region = "file"\ndatacenter = "file"\ndata_dir = "/d"\n[server]\nbootstrap_expect = 4\n')

    code, _, err = fedsched(
        f"agent -config {file} -server -node=eu-1 -retry-join a -retry-join b"
        " -set server.raft_multiplier=2 -log-json=false",
        {"FEDSCHED_REGION": "env", "FEDSCHED_LOG_JSON": "true"},
    )

    (config,) = started
    assert code == 3
    assert (config.region, config.datacenter, config.name) == ("env", "file", "eu-1")
    assert config.server.enabled
    assert config.server.server_join.retry_join == ("a", "b")
    assert config.server.raft_multiplier == 2.0
    assert config.log_json is False
    assert err.startswith("Warning: server.bootstrap_expect = 4 is even")


def test_a_dev_agent_gets_a_directory_that_is_gone_afterwards(started: list[AgentConfig]) -> None:
    assert fedsched("agent -dev")[0] == 3

    (config,) = started
    assert config.server.bootstrap_expect == 1
    assert not Path(config.data_dir).exists()


def test_wrong_settings_are_refused_before_anything_starts(started: list[AgentConfig]) -> None:
    assert fedsched("agent -dev -set regin=x") == (
        1,
        "",
        "Error: -set: unknown setting regin\n  did you mean region?\n",
    )
    assert started == []


def test_dev_boots_every_region_of_a_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    booted: list[tuple[tuple[RegionFile, ...], str]] = []

    def run_dev(regions: tuple[RegionFile, ...], data_root: str) -> int:
        booted.append((regions, data_root))
        return 0

    stand_in(monkeypatch, "fedsched.agent.dev", run_dev=run_dev)
    (tmp_path / "eu.toml").write_text('name = "eu"\n[[servers]]\nname = "eu-1"\nports = { http = 4646 }\n')

    assert fedsched(f"dev -regions {tmp_path}")[0] == 0
    assert fedsched(f"dev -regions {tmp_path} -data-dir /d -any-ports")[0] == 0

    (first, forgotten), (second, kept) = booted
    assert first[0].servers[0].ports.http == 4646
    assert not Path(forgotten).exists()
    assert second[0].servers[0].ports.http == 0
    assert kept == "/d"


NO_FLEET: dict[str, Any] = {"directory": None, "fail": "", "every_s": None}


def test_bench_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def run_bench(name: str, **options: Any) -> int:
        options.pop("out"), options.pop("err")
        asked.append({"name": name, **options})
        return 0

    monkeypatch.setattr("fedsched.cli.start.run_bench", run_bench)

    assert fedsched("bench store -json -seed 7 -duration 1m30s")[0] == 0
    assert fedsched("bench raft -count=5 -dir /d -duration 20")[0] == 0
    assert fedsched("bench nodes -count 9 -fail 10% -every 30s")[0] == 0

    assert asked == [
        {"name": "store", "seed": 7, "duration_s": 90.0, "count": None, "as_json": True, **NO_FLEET},
        {"name": "raft", "seed": 0, "duration_s": 20.0, "count": 5, "as_json": False, **NO_FLEET, "directory": "/d"},
        {"name": "nodes", "seed": 0, "duration_s": None, "count": 9, "as_json": False, **NO_FLEET}
        | {"fail": "10%", "every_s": 30.0},
    ]


@pytest.mark.parametrize("text", ["soon", "0", "-1s"])
def test_bench_refuses_what_is_no_length_of_time(text: str) -> None:
    code, _, err = fedsched(f"bench store -duration={text}")

    assert code == 1
    assert err.startswith(f"Error: -duration '{text}' is")


def test_an_unknown_bench_is_refused_by_name() -> None:
    assert fedsched("bench stroe")[2].startswith(
        f"Error: no bench 'stroe'\n  there are {', '.join(sorted(frame.BENCHES))}\n"
    )


def test_sim_and_demo_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[list[str]] = []
    stand_in(monkeypatch, "fedsched.sim.main", main=lambda given: words.append(given) or 4)
    stand_in(monkeypatch, "fedsched.cli.demo", main=lambda directory: 5 if directory == "regions" else 6)

    assert fedsched("sim --seed 7 -h")[0] == 4
    assert words == [["--seed", "7", "-h"]]
    assert fedsched("demo")[0] == 5
