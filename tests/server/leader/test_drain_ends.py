"""When a drain may be called done: what is still on its way to the node, and what people change meanwhile, count."""

from __future__ import annotations

from fedsched.model.alloc import ClientStatus
from fedsched.server.leader.drain_core import EndDrain
from tests.builders import an_id
from tests.server.leader.test_drain_core import Drainer, a_service
from tests.server.leader.worlds import Region


def an_empty_one(*, deadline_s: float = 0.0) -> Drainer:
    """A node that drains and has nothing on it, beside another."""
    region = Region()
    region.node(1)
    region.node(2)
    region.register(a_service(1))
    region.drain(1, deadline_s=deadline_s)
    return Drainer(region)


def is_draining(region: Region) -> bool:
    row = region.store.nodes.get(an_id(1))
    assert row is not None
    return row.draining


def test_a_drain_does_not_end_while_a_plan_from_before_it_arrives() -> None:
    drainer = an_empty_one()
    region = drainer.region
    effects = drainer.review()
    region.place([1], 0)  # was in the log before the end of the drain could be

    assert drainer.perform(effects) == [EndDrain((an_id(1),))]
    assert is_draining(region)

    drainer.perform(drainer.after_batch())
    region.stop_allocs([1])
    region.client([1], ClientStatus.COMPLETE)
    assert drainer.perform(drainer.review()) == [EndDrain((an_id(1),))]
    assert not is_draining(region)


def test_a_drain_that_was_changed_meanwhile_goes_on_as_changed() -> None:
    drainer = an_empty_one(deadline_s=60)
    region = drainer.region
    effects = drainer.review()
    region.drain(1, deadline_s=600)
    row = region.store.nodes.get(an_id(1))

    drainer.perform(effects)

    assert region.store.nodes.get(an_id(1)) == row
    assert drainer.perform(drainer.review()) == [EndDrain((an_id(1),))]
    assert not is_draining(region)
