from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedsched.bench import frame, machine
from fedsched.bench.frame import BenchOptions, BenchResult, run_bench
from fedsched.model.errors import BadRequest, NotFound


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[BenchOptions]:
    """A bench called "toy" that notes its options and reports two figures."""
    options_seen: list[BenchOptions] = []

    def run(options: BenchOptions) -> BenchResult:
        options_seen.append(options)
        assert options.directory.is_dir()
        options.say("half way")
        return BenchResult(
            figures={"things_per_s": 12345.678, "identical": True},
            rows=[
                {"size": 1, "us": 2.5, "what": "a"},
                {"size": 20000, "us": 0.25, "what": "b"},
                {"other": 1},
            ],
            notes=["only a toy"],
        )

    module = ModuleType("toy_bench")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_bench", module)
    monkeypatch.setattr(frame, "BENCHES", {"toy": ("toy_bench", "a toy")})
    monkeypatch.setattr(frame, "look_at_machine", lambda path: a_machine())
    return options_seen


def a_machine(load_before: float = 0.1) -> machine.Machine:
    return machine.Machine(2, "cpu", "3.11", "Linux 6", 50.0, 4000.0, load_before)


def run_toy(**more: Any) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    assert run_bench("toy", out=out, err=err, **more) == 0
    return out.getvalue(), err.getvalue()


def test_json_is_exactly_one_object_with_the_stable_names(seen: list[BenchOptions]) -> None:
    out, err = run_toy(as_json=True, seed=7)

    parsed = json.loads(out)
    assert list(parsed) == ["bench", "seed", "machine", "figures", "rows"]
    assert (parsed["bench"], parsed["seed"]) == ("toy", 7)
    assert parsed["figures"] == {"things_per_s": 12345.678, "identical": True}
    assert parsed["rows"][0] == {"size": 1, "us": 2.5, "what": "a"}
    assert {"cores", "loop_ns", "fdatasync_per_s", "load_before", "load_after", "wall_s", "cpu_s"} <= set(
        parsed["machine"]
    )
    assert err == "half way\n"


def test_text_shows_machine_figures_and_rows(seen: list[BenchOptions]) -> None:
    out, _ = run_toy()

    assert "machine: 2 cores (cpu), Python 3.11, Linux 6\n" in out
    assert "things_per_s  12,346\nidentical     True\n" in out
    assert "  size    us  what\n     1   2.5     a\n20,000  0.25     b\n" in out
    assert out.endswith("note: only a toy\n")


def test_options_reach_the_bench_and_its_directory_is_removed(seen: list[BenchOptions], tmp_path: Path) -> None:
    run_toy(seed=3, count=9, directory=str(tmp_path))

    (options,) = seen
    assert (options.seed, options.count, options.duration_s) == (3, 9, None)
    assert options.directory.parent == tmp_path
    assert not options.directory.exists()


def test_a_busy_machine_is_warned_of(seen: list[BenchOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "look_at_machine", lambda path: a_machine(load_before=1.01))

    out, err = run_toy(as_json=True)

    assert err.startswith("warning: load 1.01 on 2 cores before the start")
    json.loads(out)


def test_an_unknown_bench_and_a_contradiction_are_refused(seen: list[BenchOptions]) -> None:
    with pytest.raises(NotFound, match=r"no bench 'tory' \(there are toy\)"):
        run_bench("tory")
    with pytest.raises(BadRequest, match="both given"):
        run_bench("toy", duration_s=1.0, count=1)


def test_the_machine_is_measured(tmp_path: Path) -> None:
    facts = machine.look_at_machine(tmp_path, sync_s=0.01)

    assert facts.cores >= 1
    assert facts.fdatasync_per_s > 0
    assert 1 < facts.loop_ns < 100_000
    assert facts.processor
    assert list(tmp_path.iterdir()) == []


def test_machines_without_proc_or_load_average_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no such thing here")

    monkeypatch.setattr("os.getloadavg", refuse)
    monkeypatch.setattr("builtins.open", refuse)

    assert machine.load_average() == 0.0
    assert isinstance(machine._processor(), str)


def test_time_spent_counts_wall_and_cpu() -> None:
    with machine.measured() as spent:
        sum(range(200_000))

    assert spent.wall_s > 0
    assert spent.cpu_s >= 0
