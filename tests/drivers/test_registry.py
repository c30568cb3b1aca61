"""Which drivers a client has: built in, offered by packages, allowed, and able to start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.drivers.driver import DriverError, DriverFingerprint, Health
from fedsched.drivers.registry import BUILT_IN, DriverHost, Drivers, open_drivers
from fedsched.drivers.task_schema import Field, Kind, TaskSchema
from fedsched.telemetry.log import Hub

LOG = Hub().logger("test")


class Plain:
    """As little of a driver as the registry needs."""

    def __init__(self, host: DriverHost) -> None:
        self.host = host

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        if self.host.settings.get("fails"):
            raise RuntimeError("no such socket")
        task_status.started()
        await trio.sleep_forever()

    async def fingerprint(self) -> AsyncIterator[DriverFingerprint]:
        yield DriverFingerprint(Health.HEALTHY, "fine")
        if self.host.settings.get("breaks"):
            raise RuntimeError("gone")


class Choosy(Plain):
    settings_schema = TaskSchema({"endpoint": Field(Kind.TEXT), "fails": Field(Kind.BOOL), "breaks": Field(Kind.BOOL)})


def make_plain(host: DriverHost) -> Plain:
    return Plain(host)


def broken(host: DriverHost) -> Plain:
    raise RuntimeError("cannot be made")


HERE = "tests.drivers.test_registry"
SOME = {"plain": f"{HERE}:make_plain", "choosy": f"{HERE}:Choosy", "raw_exec": f"{HERE}:make_plain"}


def some_drivers(settings: dict[str, dict[str, Any]] | None = None, **changes: Any) -> Drivers:
    given = settings or {}
    changes.setdefault("built_in", SOME)
    return open_drivers(lambda name: DriverHost(Path("/x"), settings=given.get(name, {})), log=LOG, **changes)


def test_a_driver_that_isolates_nothing_is_off_unless_somebody_turns_it_on() -> None:
    off = some_drivers()
    assert off.names == ["choosy", "plain"]
    with pytest.raises(DriverError, match="raw_exec' is not on this node: it is not enabled"):
        off.get("raw_exec")

    assert "raw_exec" in some_drivers({"raw_exec": {"enabled": True}}).names
    assert "raw_exec" in some_drivers(is_dev=True).names
    assert "raw_exec" not in some_drivers({"raw_exec": {"enabled": "yes"}}).names


def test_drivers_can_be_allowed_and_denied_by_name() -> None:
    assert some_drivers(allowed=["plain"]).names == ["plain"]
    assert some_drivers(denied=["plain"]).names == ["choosy"]
    with pytest.raises(DriverError, match="do not allow it"):
        some_drivers(denied=["plain"]).get("plain")
    with pytest.raises(DriverError, match="there are choosy, plain"):
        some_drivers().get("fancy")


def test_a_driver_that_cannot_be_loaded_or_made_stops_no_other() -> None:
    drivers = some_drivers(
        built_in={"plain": f"{HERE}:make_plain", "bad": f"{HERE}:broken", "gone": "no.such.module:x"}
    )

    assert drivers.names == ["plain"]
    assert "cannot be made" in drivers.failed["bad"]
    assert "no" in drivers.failed["gone"]


def test_settings_that_a_driver_does_not_know_are_refused() -> None:
    assert "choosy" in some_drivers({"choosy": {"enabled": True, "endpoint": "unix:///x"}}).names
    with pytest.raises(DriverError, match=r"client\.plugin\.choosy\.endpiont is unknown: did you mean endpoint\?"):
        some_drivers({"choosy": {"endpiont": "unix:///x"}})


def test_packages_offer_drivers_and_cannot_replace_a_built_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        metadata.EntryPoint("mine", f"{HERE}:make_plain", "fedsched.drivers"),
        metadata.EntryPoint("plain", f"{HERE}:broken", "fedsched.drivers"),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)

    assert some_drivers().names == ["choosy", "mine", "plain"]


def test_a_driver_that_fails_at_its_start_takes_no_other_with_it() -> None:
    async def main() -> None:
        drivers = some_drivers({"choosy": {"fails": True}})
        async with trio.open_nursery() as nursery:
            await nursery.start(drivers.run, LOG)
            assert drivers.names == ["plain"]
            assert "no such socket" in drivers.failed["choosy"]
            nursery.cancel_scope.cancel("done")

    trio.run(main)


def test_fingerprints_tell_of_drivers_that_are_not_here_and_of_streams_that_break() -> None:
    async def main() -> None:
        drivers = some_drivers({"choosy": {"breaks": True}})
        healths = [found async for found in drivers.fingerprints("choosy")]
        assert [one.health for one in healths] == [Health.HEALTHY, Health.UNHEALTHY]
        (missing,) = [found async for found in drivers.fingerprints("raw_exec")]
        assert missing.health is Health.UNDETECTED
        assert "not enabled" in missing.description

    trio.run(main)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_driver_is_where_it_is_said_to_be(name: str) -> None:
    module, _, attribute = BUILT_IN[name].partition(":")

    assert callable(getattr(import_module(module), attribute))
