"""One container that is a task: its end, its log and its memory are watched for as long as the driver knows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from fedsched.drivers.docker.engine import Engine
from fedsched.drivers.docker.faults import EngineRefused
from fedsched.drivers.docker.labels import HandleState
from fedsched.drivers.docker.log_follower import LogFollower
from fedsched.drivers.docker.oom import OomWatch
from fedsched.drivers.docker.records import ContainerDetails, ContainerState
from fedsched.drivers.driver import DriverError, ExitResult, RunState, TaskInspection
from fedsched.telemetry.log import Logger

LOG_DRAIN_S: Final = 2.0
"""The end of a task waits so long for the rest of its output; the reading goes on after that."""
DESTROY_DRAIN_S: Final = 10.0
RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 5.0
VANISH_S: Final = 15.0
"""After a kill; then the engine is stuck and somebody else must look."""
WAIT_S: Final = 60.0
"""Then its state is asked for anew: a connection may be dead without a word."""
KILLED: Final = 137
OOM_NAME: Final = "container-oom"
OOM_GRACE_S: Final = 0.3
"""How much later than a killed container's end the kernel may say why it was killed."""


class Container:
    """A started container. `run` is its child in the driver's nursery."""

    def __init__(self, engine: Engine, handle: HandleState, log: Logger, now_ns: Callable[[], int]) -> None:
        self._engine = engine
        self.handle = handle
        self._log = log
        self._now_ns = now_ns
        self.id = handle.container_id
        self._follower = LogFollower(engine, handle, log) if handle.collects_logs else None
        self._scope = trio.CancelScope()
        self._finished = trio.Event()
        self._result: ExitResult | None = None
        self._has_result = trio.Event()

    @property
    def result(self) -> ExitResult | None:
        return self._result

    async def run(self) -> None:
        """Until it has ended and all its output is collected, or it is forgotten."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if self._follower is not None:
                        nursery.start_soon(self._follower.run)
                    await self._watch()
        finally:
            self._finished.set()

    async def wait(self) -> ExitResult | None:
        """How it ended; None if it was forgotten before."""
        await self._has_result.wait()
        return self._result

    async def drain(self) -> None:
        """Let the rest of its output in, for a while."""
        if self._follower is not None and self._result is not None:
            with trio.move_on_after(DESTROY_DRAIN_S):
                await self._follower.done.wait()

    async def forget(self) -> None:
        """Watch it no more."""
        self._scope.cancel()
        await self._finished.wait()
        self._has_result.set()
        (Path(self.handle.private_dir) / OOM_NAME).unlink(missing_ok=True)

    async def stop(self, timeout_s: float, signal: str) -> None:
        """Ask it to end, wait, then kill. Without a signal the engine uses the image's own."""
        if self._result is not None:
            return
        if not signal:
            await self._engine.stop(self.id, math.ceil(timeout_s))
        else:
            if timeout_s > 0:
                await self._signal_if_running(signal)
                with trio.move_on_after(timeout_s):
                    await self._has_result.wait()
                    return
            await self._engine.stop(self.id, 0)
        with trio.move_on_after(VANISH_S + LOG_DRAIN_S):
            await self._has_result.wait()
            return
        raise DriverError(
            f"container {self.id:.12} still runs {VANISH_S:g} s after it was killed",
            hint="look at the engine; its container may be stuck in the kernel",
            is_recoverable=True,
        )

    async def inspect(self) -> TaskInspection:
        try:
            found = await self._engine.inspect(self.id)
        except EngineRefused as error:
            if error.status != 404:
                raise
            found = ContainerDetails()
        state = RunState.EXITED if self._result is not None else RunState.RUNNING
        return TaskInspection(
            state=state,
            started_at_ns=found.state.started_at_ns,
            finished_at_ns=self._result.finished_at_ns if self._result else 0,
            exit=self._result,
            attributes={"container_id": self.id, "image_id": self.handle.image_id},
        )

    async def _signal_if_running(self, signal: str) -> None:
        try:
            await self._engine.kill(self.id, signal)
        except EngineRefused as error:
            # 409, and podman's 500: it has just ended. Everything else shows when it does not end.
            self._log.debug("signal_refused", container=self.id, signal=signal, error=str(error))

    async def _watch(self) -> None:
        state = await self._state()
        watch = OomWatch(state.pid, self.id) if state is not None and state.pid else None
        try:
            async with trio.open_nursery() as nursery:
                if watch is not None and watch.is_watching:
                    nursery.start_soon(watch.run)
                ended = await self._ended()
                nursery.cancel_scope.cancel()
            if watch is not None:
                watch.look()
                if ended is not None and ended.exit_code == KILLED and not ended.oom_killed and not watch.found:
                    with trio.move_on_after(OOM_GRACE_S):
                        await watch.run()
            result = self._result_of(ended, is_oom=watch is not None and watch.found)
        finally:
            if watch is not None:
                watch.close()
        if self._follower is not None:
            self._follower.container_ended()
            with trio.move_on_after(LOG_DRAIN_S):
                await self._follower.done.wait()
        self._result = result
        self._has_result.set()

    async def _ended(self) -> ContainerState | None:
        """Its last state; None if it was removed behind our back."""
        delay_s = 0.0
        while True:
            state = await self._state()
            if state is None or state.has_ended:
                return state
            await trio.sleep(delay_s)
            try:
                with trio.move_on_after(WAIT_S):
                    await self._engine.wait(self.id)
                delay_s = RETRY_S
            except DriverError as error:
                self._log.debug("container_wait_cut", container=self.id, error=str(error))
                delay_s = min(delay_s * 2 or RETRY_S, RETRY_S_MAX)

    async def _state(self) -> ContainerState | None:
        """Asks until the engine answers."""
        delay_s = RETRY_S
        while True:
            try:
                return (await self._engine.inspect(self.id)).state
            except EngineRefused as error:
                if error.status == 404:
                    return None
                problem: DriverError = error
            except DriverError as error:
                problem = error
            self._log.debug("container_not_inspected", container=self.id, error=str(problem))
            await trio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_S_MAX)

    def _result_of(self, state: ContainerState | None, *, is_oom: bool) -> ExitResult:
        if state is None:
            return ExitResult(error="the container was removed from outside", finished_at_ns=self._now_ns())
        mark = Path(self.handle.private_dir) / OOM_NAME
        is_oom = state.oom_killed or (state.exit_code == KILLED and (is_oom or _has_mark(mark, self.id)))
        if is_oom:
            _set_mark(mark, self.id)
        return ExitResult(
            exit_code=state.exit_code,
            oom_killed=is_oom,
            error=(state.error or "")[:1000],
            finished_at_ns=state.finished_at_ns or self._now_ns(),
        )


def _has_mark(path: Path, container_id: str) -> bool:
    """Was it seen to run out of memory by an agent before this one?"""
    try:
        return path.read_text() == container_id
    except (OSError, UnicodeDecodeError):
        return False


def _set_mark(path: Path, container_id: str) -> None:
    try:
        path.write_text(container_id)
    except OSError:
        return
