from __future__ import annotations

import msgspec
import pytest

from fedsched.sim.options import FEATURES, JOB_STORE, THEMES, Options, changed, draw_options, load, save
from fedsched.sim.schedule import FAULTS, draw_schedule

SEEDS = range(200)


def test_options_follow_from_the_seed_alone() -> None:
    assert draw_options(7) == draw_options(7)
    assert draw_options(7) != draw_options(8)


def test_a_record_survives_saving_and_loading() -> None:
    for seed in SEEDS:
        options = draw_options(seed)
        assert load(save(options)) == options


def test_anything_else_is_refused_when_loading() -> None:
    with pytest.raises(msgspec.ValidationError):
        load('{"servers": "many"}')


def test_each_seed_turns_about_half_of_the_features_off() -> None:
    for seed in SEEDS:
        options = draw_options(seed)
        drawn = set(options.features) - {JOB_STORE} - set(THEMES[options.theme])
        assert len(drawn) <= len(FEATURES) // 2
        assert set(THEMES[options.theme]) <= set(options.features)


def test_every_feature_theme_and_size_comes_up() -> None:
    drawn = [draw_options(seed) for seed in SEEDS]

    assert {feature for options in drawn for feature in options.features} == {*FEATURES, JOB_STORE}
    assert {options.theme for options in drawn} == set(THEMES)
    assert {options.servers for options in drawn} == {1, 2, 3, 4, 5}


def test_every_fault_is_a_feature_and_every_schedule_is_in_time_order() -> None:
    assert set(FAULTS) <= set(FEATURES)
    for seed in range(20):
        options = draw_options(seed)
        times = [action.at_us for action in draw_schedule(seed, options)]
        assert times == sorted(times)
        assert all(time_us < options.chaos_us for time_us in times)


def test_a_schedule_without_features_holds_operations_only() -> None:
    kinds = {action.kind for action in draw_schedule(1, Options())}

    assert kinds == {"operation"}


def test_a_schedule_is_plain_data() -> None:
    schedule = draw_schedule(3, draw_options(3))

    assert msgspec.json.decode(msgspec.json.encode(schedule), type=type(schedule)) == [
        msgspec.json.decode(msgspec.json.encode(action)) for action in schedule
    ]


def test_changing_an_option_leaves_the_rest() -> None:
    options = changed(Options(), servers=5)

    assert (options.servers, options.clients) == (5, Options().clients)
