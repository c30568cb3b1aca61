from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.env.env import Env
from fedsched.env.fixed import FixedEnv
from fedsched.env.ids import uuid_text
from fedsched.env.real import RealEnv


def a_seeded_pair(seed: str) -> tuple[Env, Env]:
    return RealEnv(seed), RealEnv(seed)


@given(st.binary(min_size=16, max_size=16))
def test_ids_are_version_4_uuids_whatever_the_bytes(data: bytes) -> None:
    parsed = uuid.UUID(uuid_text(data))

    assert parsed == uuid.UUID(bytes=data, version=4)
    assert str(parsed) == uuid_text(data)


def test_ids_need_exactly_16_bytes() -> None:
    with pytest.raises(ValueError, match="got 15"):
        uuid_text(b"x" * 15)


def test_real_clocks_move_and_ids_differ() -> None:
    env = RealEnv()

    assert env.now() <= env.now()
    assert env.wall() > 1_600_000_000
    assert env.new_id() != env.new_id()


def test_a_real_env_with_a_seed_repeats_its_dice_but_not_its_ids() -> None:
    first, second = a_seeded_pair("7/eu-1")

    assert [first.rng("election").random() for _ in range(3)] == [second.rng("election").random() for _ in range(3)]
    assert first.new_id() != second.new_id()


def test_a_real_env_without_a_seed_does_not_repeat() -> None:
    assert RealEnv().rng("a").getrandbits(128) != RealEnv().rng("a").getrandbits(128)


def test_streams_do_not_disturb_each_other() -> None:
    quiet, noisy = a_seeded_pair("1")
    noisy.rng("retry").random()

    assert quiet.rng("election").random() == noisy.rng("election").random()
    assert quiet.rng("election") is quiet.rng("election")


def test_the_fixed_env_repeats_everything() -> None:
    first: Env = FixedEnv(seed=3)
    second: Env = FixedEnv(seed=3)

    assert first.new_id() == second.new_id()
    assert first.new_id() != FixedEnv(seed=4).new_id()
    assert first.rng("x").randrange(0, 1000) == second.rng("x").randrange(0, 1000)


def test_fixed_time_passes_only_when_told_to() -> None:
    env = FixedEnv(now=5.0, wall=100.0)

    env.advance(2.5)
    env.jump_wall(-50.0)

    assert env.now() == 7.5
    assert env.wall() == 52.5
    with pytest.raises(ValueError, match="does not go back"):
        env.advance(-1)
