"""The methods of `builders` are in the table during these tests and only then."""

from __future__ import annotations

import pytest

from fedsched.rpc import method
from tests.rpc.builders import METHODS


@pytest.fixture(autouse=True)
def _test_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, known in METHODS.items():
        monkeypatch.setitem(method._METHODS, name, known)
