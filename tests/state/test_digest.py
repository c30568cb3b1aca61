from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsched.state.digest import COLUMN_HASH_MODULUS, column_hash, combine


@given(st.lists(st.lists(st.integers(0, (1 << 64) - 1), min_size=3, max_size=3), min_size=1, max_size=6))
def test_the_hash_of_rows_is_the_sum_of_the_hashes_of_each(rows: list[list[int]]) -> None:
    words = np.array(rows, dtype=np.uint64)
    keys = np.arange(len(rows), dtype=np.uint64)

    parts = [column_hash(words[at : at + 1], keys[at : at + 1]) for at in range(len(rows))]
    assert column_hash(words, keys) == sum(parts) % COLUMN_HASH_MODULUS


def test_the_same_change_in_two_rows_does_not_cancel_out() -> None:
    before = np.array([[1, 2], [1, 2]], dtype=np.uint64)
    after = np.array([[2, 1], [2, 1]], dtype=np.uint64)
    keys = np.array([0, 1], dtype=np.uint64)

    assert column_hash(before, keys) != column_hash(after, keys)
    assert column_hash(before, keys) != column_hash(before, keys + np.uint64(1))


def test_the_whole_digest_depends_on_every_part_and_on_the_index() -> None:
    seen = {combine({"a": 1, "b": 2}, 1), combine({"a": 2, "b": 1}, 1), combine({"a": 1, "b": 2}, 2), combine({}, 1)}

    assert len(seen) == 4
    assert combine({"a": 1, "b": 2}, 1) == combine({"b": 2, "a": 1}, 1)


PROGRAM = """
from tests.state.golden import a_golden_world
from fedsched.state.image import save
import hashlib
world = a_golden_world()
print(world.store.digest().hex(), hashlib.sha256(b"".join(save(world.store.snapshot()))).hexdigest())
"""


def test_digest_and_image_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(seen) == 1
