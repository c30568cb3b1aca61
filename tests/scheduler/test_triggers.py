"""Which reasons for an evaluation schedulers take, and what becomes of the others."""

from __future__ import annotations

import pytest

from fedsched.model.evaluation import EvaluationStatus, Trigger
from fedsched.scheduler.generic import GenericScheduling
from fedsched.scheduler.pieces import at_once
from fedsched.scheduler.triggers import refused
from tests.builders import an_evaluation
from tests.scheduler.test_generic import a_simple, some_nodes
from tests.scheduler.toy_region import ToyRegion

NOT_FOR_SYSTEM = {"periodic-job", "alloc-failure", "alloc-reschedule", "scheduled"}


@pytest.mark.parametrize("trigger", list(Trigger))
def test_every_reason_but_clean_up_is_taken_by_the_schedulers_that_it_concerns(trigger: Trigger) -> None:
    taken = {
        kind
        for kind in ("service", "batch", "system", "sysbatch")
        if refused(an_evaluation(type=kind, triggered_by=trigger)) is None
    }

    expected = {"service", "batch"} if trigger.value != "scheduled" else set()
    expected |= {"system", "sysbatch"} if trigger.value not in NOT_FOR_SYSTEM else set()
    expected |= {"sysbatch"} if trigger.value == "periodic-job" else set()
    assert taken == expected


@pytest.mark.parametrize("in_pieces", [False, True])
def test_an_evaluation_for_an_unknown_reason_fails_with_words_and_changes_nothing(in_pieces: bool) -> None:
    region = ToyRegion(some_nodes(2))
    job = a_simple(2)
    region.register(job)
    evaluation = region.evaluate(job, Trigger.SCHEDULED)

    if in_pieces:
        scheduling = GenericScheduling(evaluation, region.new_id)
        attempt = at_once(scheduling.attempt_in_pieces(region.store, region.fleet, region.now_ns))
        region.commit(attempt)
    else:
        (attempt,) = region.run(evaluation)

    assert attempt.plan is None
    done = region.evaluation(evaluation.id)
    assert done.status is EvaluationStatus.FAILED
    assert done.status_description == "the scheduler of service jobs knows nothing to do for the reason 'scheduled'"
    assert region.live(job) == []
