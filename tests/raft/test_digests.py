from __future__ import annotations

from fedsched.raft.digests import INDEXES_MAX, DigestBook, OwnDigests
from tests.raft.region import a_config

THREE = a_config("123", learners="4")


def test_equal_digests_raise_nothing() -> None:
    book = DigestBook()

    assert book.note("1", 8, b"x", THREE) == (b"", [])
    assert book.note("2", 8, b"x", THREE) == (b"", [])
    assert book.disagreement_at == 0


def test_whoever_differs_from_the_majority_is_named_each_time() -> None:
    book = DigestBook()
    book.note("1", 8, b"x", THREE)
    assert book.note("2", 8, b"y", THREE) == (b"", [])
    assert book.disagreement_at == 8

    assert book.note("3", 8, b"x", THREE) == (b"x", ["2"])
    assert book.note("2", 8, b"y", THREE) == (b"x", ["2"])


def test_learners_are_compared_but_do_not_decide() -> None:
    book = DigestBook()
    book.note("1", 8, b"x", THREE)
    assert book.note("4", 8, b"y", THREE) == (b"", [])

    assert book.note("2", 8, b"x", THREE) == (b"x", ["4"])


def test_only_the_newest_indexes_are_kept() -> None:
    book = DigestBook()
    own = OwnDigests()
    for index in range(1, INDEXES_MAX + 3):
        book.note("1", index, b"x", THREE)
        own.note(index, b"x")

    assert book.note("2", 1, b"y", THREE) == (b"", [])
    assert [index for index, _ in own.items()] == list(range(3, INDEXES_MAX + 3))
    assert (own.index, own.digest) == (INDEXES_MAX + 2, b"x")


def test_a_server_knows_where_it_differs() -> None:
    own = OwnDigests()
    own.note(8, b"x")

    assert own.differs(8, b"y")
    assert not own.differs(8, b"x")
    assert not own.differs(4, b"y")
