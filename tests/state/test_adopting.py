from __future__ import annotations

from fedsched.state.adopting import adopt_saved, index_ahead
from fedsched.state.tables.meta import ClusterBegin
from tests.builders import a_job
from tests.state.golden import a_golden_world
from tests.state.test_histories import restored
from tests.state.worlds import World, problems


def test_indexes_go_on_from_the_higher_of_the_two_states_and_the_region_keeps_its_name() -> None:
    present = World()
    present.do(ClusterBegin(cluster_id="here"))
    saved = a_golden_world()
    stores = [restored(saved.store) for _ in range(2)]
    for store in stores:
        adopt_saved(store, present.store, log_index=2)

    first, second = stores
    assert first.digest() == second.digest()
    assert first.index == saved.index + 1
    assert index_ahead(first) == first.index - 2
    assert first.meta.cluster_id == "here"
    assert first.jobs.get("default", "web") is not None
    assert first.table_index("jobs") == first.index
    assert problems(first) == []


def test_a_state_older_than_the_present_one_does_not_set_indexes_back() -> None:
    present = a_golden_world()
    saved = World()
    saved.register(a_job("lonely"))
    adopt_saved(saved.store, present.store, log_index=present.index + 1)

    assert saved.store.index == present.index + 1
    assert index_ahead(saved.store) == 0
    assert saved.store.time_ns == present.store.time_ns
