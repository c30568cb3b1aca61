"""Schedulers of installed packages: found by name, loaded only if enabled, refused with a reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsched.model.job import is_type_name
from fedsched.scheduler.generic import GenericScheduling
from fedsched.scheduler.registry import Schedulers, UnfitScheduler, UnknownScheduler, schedulers_of
from fedsched.scheduler.schedule import BUILT_IN

GOOD = """
class Quantum:
    def __init__(self, evaluation, new_id): ...
    def attempt(self, state, fleet, now_ns): ...
    def heard(self, outcome, now_ns): ...

def make(evaluation, new_id):
    return Quantum(evaluation, new_id)

class OneArgument(Quantum):
    def __init__(self, evaluation): ...

class Silent:
    def __init__(self, evaluation, new_id): ...

word = "no scheduler at all"
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put packages where an installer would: a module, and metadata that names its entry points."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def put(package: str = "quantum", source: str = GOOD, /, **points: str) -> None:
        (tmp_path / f"{package}.py").write_text(source)
        about = tmp_path / f"{package}-1.2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = "\n".join(f"{name.replace('_', '-')} = {value}" for name, value in points.items())
        (about / "entry_points.txt").write_text(f"[fedsched.schedulers]\n{lines}\n")

    yield put
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_all_built_in_schedulers_run_unless_some_are_named() -> None:
    assert schedulers_of(()) == Schedulers(BUILT_IN)
    assert schedulers_of(("batch",)).enabled == {"batch": GenericScheduling}


@pytest.mark.parametrize("what", ["Quantum", "make"])
def test_a_scheduler_of_an_installed_package_runs_if_it_is_named(install: Install, what: str) -> None:
    install(quantum=f"quantum:{what}")

    found = schedulers_of(("service", "quantum"))

    assert sorted(found.enabled) == ["quantum", "service"]
    assert getattr(found.enabled["quantum"], "__name__", "") == what
    assert found.idle == ()


def test_nothing_is_imported_of_a_package_whose_scheduler_is_not_enabled(install: Install) -> None:
    install("harmful", "raise SystemExit('imported')", harmful="harmful:Scheduler")

    found = schedulers_of(())

    assert found.enabled == BUILT_IN
    assert found.idle == ("harmful",)


def test_a_package_cannot_take_the_place_of_a_built_in_scheduler(install: Install) -> None:
    install(service="quantum:Quantum")

    found = schedulers_of(("service",))

    assert found.enabled["service"] is GenericScheduling
    assert found.idle == ()


def test_a_scheduler_that_nobody_offers_is_refused_with_the_nearest_there_is() -> None:
    with pytest.raises(UnknownScheduler, match="'servce'") as caught:
        schedulers_of(("servce",))

    assert 'did you mean "service"?' in caught.value.hint
    assert "fedsched.schedulers" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("quantum:Missing", "cannot be loaded: AttributeError"),
        ("absent:Quantum", "cannot be loaded: ModuleNotFoundError"),
        ("quantum:word", "cannot be called"),
        ("quantum:OneArgument", "does not take two arguments"),
        ("quantum:Silent", "has no attempt() and no heard()"),
    ],
)
def test_a_scheduler_that_does_not_load_or_fit_is_refused_with_its_package(
    install: Install, value: str, words: str
) -> None:
    install(quantum=value)

    with pytest.raises(UnfitScheduler) as caught:
        schedulers_of(("quantum",))

    assert words in caught.value.message
    assert f"the scheduler for 'quantum', {value} of quantum 1.2" in caught.value.message
    assert caught.value.hint


def test_a_package_that_fails_while_it_is_imported_is_refused_with_its_words(install: Install) -> None:
    install("broken", "raise RuntimeError('no licence')", broken="broken:Scheduler")

    with pytest.raises(UnfitScheduler, match="RuntimeError: no licence"):
        schedulers_of(("broken",))


def test_two_packages_for_one_type_are_refused(install: Install) -> None:
    install(quantum="quantum:Quantum")
    install("rival", GOOD, quantum="rival:Quantum")

    with pytest.raises(UnfitScheduler, match=r"several schedulers for 'quantum': .*quantum 1.2.*"):
        schedulers_of(("quantum",))


def test_a_callable_that_does_not_say_what_it_takes_is_taken_at_its_word(install: Install) -> None:
    install("opaque", "Scheduler = dict.fromkeys", opaque="opaque:Scheduler")

    assert "opaque" in schedulers_of(("opaque",)).enabled


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("round-robin", True), ("r2d2", True), ("_core", False), ("2fast", False), ("", False), ("a b", False)],
)
def test_a_job_type_begins_with_a_letter_and_has_no_odd_characters(name: str, is_one: bool) -> None:
    assert is_type_name(name) is is_one
    assert not is_type_name("a" * 65)


def test_a_name_that_no_job_type_can_have_is_refused(install: Install) -> None:
    points: dict[str, Any] = {"9lives": "quantum:Quantum"}
    install(**points)

    with pytest.raises(UnfitScheduler, match="no name of a job type"):
        schedulers_of(("9lives",))
