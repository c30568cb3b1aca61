"""The parts of `bench region` that need no region: figures from measurements, and what is said in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.agent.process import ServerProcess
from fedsched.bench.region import _last_words, by_part, deciles, rates
from fedsched.bench.region_processes import MeasuredServer
from fedsched.model.errors import Unavailable


def an_ended_server(directory: Path) -> MeasuredServer:
    """One whose settings no agent accepts."""
    process = ServerProcess("s1", directory, (0, 0, 0), ["127.0.0.1:1"], region="bench", extra="[nonsense]\n")
    process.start()
    assert process._process is not None
    process._process.wait(30)
    return MeasuredServer(process)


def test_a_failure_quotes_the_server_that_is_gone(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match=r"no answer; server s1 ended with 1: .*nonsense"),
        _last_words([an_ended_server(tmp_path)]),
    ):
        raise Unavailable("no answer")


def test_a_failure_with_all_servers_up_is_told_as_it_is() -> None:
    with pytest.raises(Unavailable, match=r"^no answer"), _last_words([]):
        raise Unavailable("no answer")


def test_rates_are_those_of_tenths_of_the_time() -> None:
    placed = [(0.5, 100), (1.5, 300), (10.5, 50)]
    assert rates(placed, 0.0, 20.0)[0] == (0.0, 200.0)
    assert rates(placed, 0.0, 20.0)[5] == (10.0, 25.0)
    assert rates(placed, 10.0, 20.0)[0] == (10.0, 50.0)


def test_the_last_tenth_is_compared_with_the_first_whatever_part_of_a_wave_it_begins_in() -> None:
    def waves(phase: float, until: float) -> list[tuple[float, int]]:
        """A thousand at the beginning of each second, in four steps, from 10 s on; half as many in the last ten."""
        found = []
        for second in range(10, 110):
            size = 125 if second >= until else 250
            found += [(second + phase + part / 50, size) for part in range(4)]
        return found

    for phase in (0.0, 0.3, 0.6, 0.9):
        assert deciles(waves(phase, 200.0), 10.0, 110.0) == pytest.approx(1.0, abs=0.05)
        assert deciles(waves(phase, 100.0), 10.0, 110.0) == pytest.approx(0.5, abs=0.05)
    assert deciles([(1.0, 5)], 0.0, 10.0) == 0.0


def test_processor_time_is_split_by_each_servers_own_samples() -> None:
    before = [{"apply": 10.0}, {}]
    after = [{"apply": 40.0, "links": 10.0}, {"apply": 1.0}]
    assert by_part([4.0, 2.0], before, after) == [("apply", 5.0), ("links", 1.0)]
