"""Patterns of users: bounded, linear, and never a reason to crash."""

from __future__ import annotations

from fedsched.model.patterns import MAX_PATTERN, MAX_TEXT, found_in, pattern_problem


def test_a_pattern_is_searched_for_anywhere_in_the_text() -> None:
    assert found_in("o+b", "foobar")
    assert not found_in("^o+b", "foobar")
    assert found_in(r"^linux-\d+$", "linux-5")


def test_a_pattern_that_does_not_compile_matches_nothing_and_says_why() -> None:
    assert not found_in("(", "(")
    assert "missing )" in (pattern_problem("(") or "")
    assert pattern_problem("[a-z]+") is None


def test_what_a_linear_engine_cannot_do_is_refused() -> None:
    assert pattern_problem(r"(a)\1") is not None
    assert pattern_problem(r"(?=a)b") is not None


def test_a_pattern_that_would_need_too_much_memory_is_refused() -> None:
    assert pattern_problem("((a{100}){100}){100}") is not None


def test_the_classic_backtracking_bomb_ends_at_once() -> None:
    assert not found_in("(a+)+$", "a" * 5000 + "!")


def test_a_long_pattern_or_text_is_not_even_looked_at() -> None:
    assert f"at most {MAX_PATTERN}" in (pattern_problem("a" * (MAX_PATTERN + 1)) or "")
    assert not found_in("a" * (MAX_PATTERN + 1), "a" * (MAX_PATTERN + 1))
    assert not found_in("a", "a" * (MAX_TEXT + 1))


def test_half_a_surrogate_pair_is_no_text_and_no_pattern() -> None:
    assert not found_in("a", "a\ud800")
    assert pattern_problem("\ud800") is not None
