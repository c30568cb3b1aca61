"""A docker driver on a fake engine, driven by a script in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
import trio.testing

from fedsched.drivers.docker.config import DockerSettings
from fedsched.drivers.docker.driver import DockerDriver
from fedsched.drivers.docker.transport import Transport
from fedsched.drivers.driver import (
    LogLimits,
    TaskConfig,
)
from tests.drivers.conformance import make_dirs
from tests.drivers.fake_engine import FakeContainer, FakeEngine, MemoryEndpoint

_NUMBERS = itertools.count(1)
Script = Callable[[DockerDriver, FakeEngine], Awaitable[None]]


def a_task(place: Path, **fields: Any) -> TaskConfig:
    number = next(_NUMBERS)
    alloc_id = f"00000000-0000-0000-0000-{number:012x}"
    return TaskConfig(
        id=f"{alloc_id}/web/{number:08x}",
        alloc_id=alloc_id,
        namespace="default",
        job_id="shop",
        group="front",
        task="web",
        node_id="node",
        dirs=make_dirs(place / alloc_id, "web"),
        config={"image": "app:1", **fields.pop("config", {})},
        logs=fields.pop("logs", LogLimits(is_disabled=True)),
        **fields,
    )


def drive(script: Script, *, fake: FakeEngine | None = None, patience_s: float = 0, **settings: Any) -> FakeEngine:
    """An agent's life with a fake engine, in virtual time."""
    engine = fake or FakeEngine()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            driver = DockerDriver("docker", DockerSettings(**settings), node_id="node")
            driver._engine._transport = Transport(MemoryEndpoint(engine, nursery))
            await nursery.start(driver.run)
            await script(driver, engine)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=patience_s))
    return engine


def only(fake: FakeEngine) -> FakeContainer:
    (container,) = fake.containers.values()
    return container
