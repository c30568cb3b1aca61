"""From a task's settings to a container that runs: the image, the name, the start, and the clean-up if one fails."""

from __future__ import annotations

import os
from typing import Final

import trio
from msgspec import structs

from fedsched.drivers.docker.config import DockerSettings
from fedsched.drivers.docker.coordinator import ImageCoordinator, Tell, read_archive
from fedsched.drivers.docker.create import EngineFacts, create_body
from fedsched.drivers.docker.credentials import registry_auth
from fedsched.drivers.docker.engine import Engine
from fedsched.drivers.docker.faults import EngineFault, EngineRefused
from fedsched.drivers.docker.image_reference import ImageReference, parse_reference
from fedsched.drivers.docker.inside import open_inside
from fedsched.drivers.docker.labels import ALLOC_ID, NODE_ID, TASK_ID, HandleState, container_name
from fedsched.drivers.docker.records import ContainerDetails
from fedsched.drivers.docker.task_config import TaskSettings
from fedsched.drivers.driver import DriverError, TaskConfig
from fedsched.telemetry.log import Logger

START_ATTEMPTS: Final = 5
RETRY_S: Final = 0.25
CLEAN_UP_S: Final = 30.0
_FINAL: Final = (
    *("executable file not found", "no such file or directory", "command that was not found"),
    *("command cannot be invoked", "permission denied", "exec format error", "not a directory"),
)
"""What both engines say, with status 500 too, about a command that will not be there next time either."""


class Starter:
    """Makes and starts containers."""

    def __init__(self, engine: Engine, images: ImageCoordinator, operator: DockerSettings, log: Logger) -> None:
        self._engine = engine
        self._images = images
        self._operator = operator
        self._log = log

    async def start(
        self, config: TaskConfig, settings: TaskSettings, facts: EngineFacts, tell: Tell
    ) -> tuple[HandleState, ContainerDetails]:
        """A container that runs, and what finds it again. On any failure nothing of it is left."""
        image_id = await self._image(config, settings, tell)
        container_id = ""
        try:
            handle = _handle(config, settings, self._operator, image_id)
            body = create_body(config, settings, self._operator, facts, image_id=image_id, handle=handle.to_bytes())
            container_id = await self._create(config, container_name(config), body, settings.exists_attempts)
            await self._start(container_id)
            found = await self._engine.inspect(container_id)
        except BaseException:
            with trio.move_on_after(CLEAN_UP_S, shield=True):
                await self._undo(container_id, image_id, config.id)
            raise
        return structs.replace(handle, container_id=container_id), found

    async def _undo(self, container_id: str, image_id: str, task_id: str) -> None:
        self._images.release(image_id, task_id)
        if not container_id:
            return
        try:
            await self._engine.remove(container_id, force=True)
        except DriverError as error:
            self._log.warn("container_left_behind", container=container_id, task_id=task_id, error=str(error))

    # image

    async def _image(self, config: TaskConfig, settings: TaskSettings, tell: Tell) -> str:
        image = parse_reference(settings.image)
        if not image.moves and not settings.values.flag("force_pull"):
            found = await self._images.local(str(image), config.id)
            if found is not None:
                return found
        if settings.values.text("load"):
            return await self._load(config, settings, image, tell)
        auth = await registry_auth(image, settings, self._operator)
        return await self._images.pull(image, auth, settings.pull_timeout_s, config.id, tell)

    async def _load(self, config: TaskConfig, settings: TaskSettings, image: ImageReference, tell: Tell) -> str:
        path = settings.values.text("load")
        try:
            fd = open_inside(config.dirs.local, path)
        except DriverError:
            fd = open_inside(config.dirs.task, path)
        tell(f"Loading {image} from {path} ({os.fstat(fd).st_size / 1e6:.1f} MB)")
        return await self._images.load(read_archive(fd), image, settings.pull_timeout_s, config.id)

    # name

    async def _create(self, config: TaskConfig, name: str, body: dict[str, object], attempts: int) -> str:
        for attempt in range(attempts):
            try:
                return await self._engine.create(name, body)
            except EngineRefused as error:
                if not _is_name_taken(error):
                    raise
                await self._clear_name(config, name)
            except EngineFault:
                # It may have been made although we never heard: then the name is taken, by ours.
                if attempt == attempts - 1:
                    raise
            await trio.sleep(RETRY_S * 2**attempt)
        raise DriverError(f"the name {name} stayed taken over {attempts} attempts", is_recoverable=True)

    async def _clear_name(self, config: TaskConfig, name: str) -> None:
        """Remove what an earlier start of the same task left under its name; anybody else's is not touched."""
        try:
            found = await self._engine.inspect(name)
        except EngineRefused as error:
            if error.status == 404:
                return
            raise
        labels = found.labels
        of_task = labels.get(TASK_ID, config.id).rpartition("/")[0]
        is_ours = labels.get(ALLOC_ID) == config.alloc_id and of_task == config.id.rpartition("/")[0]
        if not is_ours or labels.get(NODE_ID, config.node_id) != config.node_id:
            raise DriverError(
                f"the name {name} is taken by container {found.id:.12}, which is not ours",
                hint="remove or rename it at the engine",
                is_recoverable=True,
            )
        self._log.info("container_replaced", container=found.id, task_id=config.id, was=labels.get(TASK_ID, ""))
        await self._engine.remove(found.id, force=True)

    # start

    async def _start(self, container_id: str) -> None:
        for attempt in range(START_ATTEMPTS):
            try:
                await self._engine.start(container_id)
                return
            except EngineRefused as error:
                if error.status < 500 or any(words in error.reason.lower() for words in _FINAL):
                    raise DriverError(error.message) from error
                problem: DriverError = error
            except EngineFault as error:
                problem = error
            if await self._runs(container_id):
                return
            if attempt == START_ATTEMPTS - 1:
                raise problem
            self._log.debug("container_start_retried", container=container_id, error=str(problem))
            await trio.sleep(RETRY_S * 2**attempt)

    async def _runs(self, container_id: str) -> bool:
        """Did it start although the engine said it did not, or said nothing? One that has ended since did, too."""
        try:
            state = (await self._engine.inspect(container_id)).state
        except DriverError:
            return False
        return state.running or state.status == "exited"


def _is_name_taken(error: EngineRefused) -> bool:
    return error.status == 409 or (error.status == 500 and "already in use" in error.reason and "name" in error.reason)


def _handle(config: TaskConfig, settings: TaskSettings, operator: DockerSettings, image_id: str) -> HandleState:
    return HandleState(
        task_id=config.id,
        alloc_id=config.alloc_id,
        task=config.task,
        node_id=config.node_id,
        logs_dir=str(config.dirs.logs),
        private_dir=str(config.dirs.private),
        image_id=image_id,
        max_files=config.logs.max_files,
        max_file_bytes=config.logs.max_file_bytes,
        collects_logs=operator.collects_logs and not config.logs.is_disabled,
        is_tty=settings.values.flag("tty"),
    )
