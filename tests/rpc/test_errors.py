"""Errors cross the wire by code."""

from __future__ import annotations

import importlib

import pytest

from fedsched.codec import dumps
from fedsched.model.errors import BadRequest, Busy, FedschedError, Unavailable
from fedsched.rpc.context import ReplyMeta
from fedsched.rpc.errors import RemoteError, _definers, error_of, failure_of, known_errors, meta_of, with_meta
from fedsched.wire.errors import Failure


@pytest.mark.parametrize("kind", [BadRequest, Busy, Unavailable])
def test_a_known_error_comes_back_as_its_class(kind: type[FedschedError]) -> None:
    error = error_of(failure_of(kind("what", hint="how")))

    assert type(error) is kind
    assert (error.message, error.hint, error.http_status) == ("what", "how", kind.http_status)


def test_an_unknown_code_keeps_everything_it_said() -> None:
    failure = Failure("from_the_future", "what", "how", 451, b"details")

    error = error_of(failure)

    assert isinstance(error, RemoteError)
    assert (error.code, error.http_status, str(error)) == ("from_the_future", 451, "what (how)")
    assert failure_of(error) == failure  # and passes on unchanged


@pytest.mark.parametrize("kind", [BadRequest, Unavailable])
def test_what_is_said_beside_an_error_comes_out_at_the_other_end(kind: type[FedschedError]) -> None:
    meta = ReplyMeta(index=7, applied=9, server="s1")

    error = error_of(failure_of(with_meta(kind("what"), meta)))

    assert meta_of(error) == meta
    assert meta_of(error_of(failure_of(error))) == meta  # and when it is passed on


def test_an_unknown_error_says_it_too() -> None:
    error = error_of(Failure("from_the_future", "what", details=dumps([{"Index": 5, "New": 1}, "more"])))

    assert meta_of(error) == ReplyMeta(index=5)


@pytest.mark.parametrize("details", [b"", b"\xff", dumps(5), dumps([]), dumps(["x"]), dumps([{"Index": "x"}])])
def test_what_is_not_understood_beside_an_error_is_not_heard(details: bytes) -> None:
    assert meta_of(error_of(Failure("bad_request", "what", details=details))) is None


def test_a_status_that_is_no_error_status_is_not_believed() -> None:
    assert error_of(Failure("unheard_of", "x", http_status=200)).http_status == 500
    assert error_of(Failure("unheard_of", "x", http_status=10**9)).http_status == 500


def test_a_class_that_came_later_is_found_and_its_constructor_is_not_called() -> None:
    class NeedsFacts(FedschedError):
        code = "needs_facts"

        def __init__(self, fact: int) -> None:
            super().__init__(f"fact {fact}")

    error = error_of(failure_of(NeedsFacts(3)))

    assert isinstance(error, NeedsFacts)
    assert error.message == "fact 3"


def test_a_subclass_without_a_code_of_its_own_travels_as_its_parent() -> None:
    class Special(Unavailable):
        pass

    assert type(error_of(failure_of(Special("x")))) is Unavailable


def test_codes_are_listed_for_the_reference() -> None:
    errors = known_errors()

    assert errors["bad_request"] is BadRequest
    assert list(errors) == sorted(errors)


def test_no_two_errors_of_ours_share_a_code() -> None:
    """By its code alone an error must find back to its class, whatever else the process has imported."""
    owners: dict[str, list[str]] = {}
    for module in ("fedsched.raft.errors", "fedsched.server.dispatch", "fedsched.codec.cbor", "fedsched.wire.frames"):
        importlib.import_module(module)
    for kind in _definers(FedschedError):
        if kind.__module__.startswith("fedsched."):
            owners.setdefault(kind.code, []).append(kind.__qualname__)

    assert {code: names for code, names in owners.items() if len(names) > 1} == {}
