"""What every test run shares: repeatable Hypothesis, no example database, no deadline on a busy machine, and an eye on
every plan that is committed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "check",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", deadline=None, print_blob=True, max_examples=5_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "plans_by_hand: commits plans that nobody has checked against the nodes")


@pytest.fixture(autouse=True)
def no_plan_promises_too_much(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever commits a plan to a state of this process, it is counted again from whole records (see `overcommit`).

    Tests whose plans are made by hand, to see what becomes of them, say so: `plans_by_hand`. All of the store's do.
    """
    is_by_hand = "state" in request.path.parts or request.node.get_closest_marker("plans_by_hand") is not None
    if is_by_hand or "fedsched.state.commands" not in sys.modules:
        yield
        return
    from fedsched.state.commands import COMMANDS
    from tests.overcommit import PlanWatch

    watch = PlanWatch(COMMANDS["plan-apply"])
    monkeypatch.setitem(COMMANDS, "plan-apply", watch.watched())
    yield
    assert not watch.problems, "a committed plan promises too much: " + "; ".join(watch.problems[:5])
