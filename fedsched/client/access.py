"""What servers may ask of a client over its own link: logs, files, terminals, restarts, signals, figures, clean-up.

Who may ask was decided by the servers; here it is only asked which allocation is meant, whether it is on this node, and
what this node's operator forbids. Give `calls` to the link to the servers as its handler, and run `run` beside it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import trio

from fedsched.client.context import AllocContext, ClientParts, TaskContext
from fedsched.client.exec_sessions import ExecSessions
from fedsched.client.file_wakes import FileWakes
from fedsched.client.files import CHUNK_BYTES, AllocFiles, read_at
from fedsched.client.logs import READERS, STREAMS, FileSource, LogSource, stream
from fedsched.client.snapshots import write_snapshot
from fedsched.client.stats import HostFigures, RunningTask, TaskFigures, core_mhz_of
from fedsched.model.errors import BadRequest, NotFound, Unavailable
from fedsched.model.usage import AllocResourceUsage
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods import alloc_access as access
from fedsched.rpc.methods import node_calls
from fedsched.rpc.methods.node import NodeRequest
from fedsched.rpc.server_side import CallContext, CallServer, Handler
from fedsched.wire.groups import open_plain_nursery

DEFAULT_SIGNAL: Final = "SIGINT"
OS_SIGNALS: Final = "os.signals"
SNAPSHOTS: Final = trio.CapacityLimiter(4)
"""Archives under way at once. Each keeps its thread as long as its reader takes, and must not take those of logs."""


class Runner(Protocol):
    """What is needed of an allocation's runner."""

    @property
    def context(self) -> AllocContext: ...

    async def restart(self, task: str = "", *, all_tasks: bool = False) -> None: ...

    async def signal(self, task: str, signal: str) -> None: ...


class AccessedClient(Protocol):
    """What is needed of the client."""

    @property
    def parts(self) -> ClientParts: ...

    def runner(self, alloc_id: str) -> Runner | None:
        """The runner of an allocation that is on this node, running or over."""

    @property
    def runners(self) -> Mapping[str, Runner]:
        """All that are on this node."""

    async def collect_garbage(self, alloc_id: str = "") -> int:
        """Remove one finished allocation, or all of them; how many it were."""

    def meta(self) -> node_calls.NodeMetaReply:
        """The node's metadata, and where it comes from."""

    async def apply_meta(self, change: Mapping[str, str | None]) -> None:
        """Change it; returns when that survives the agent."""


class ClientAccess:
    """Serves the methods that run at a node."""

    def __init__(self, client: AccessedClient) -> None:
        parts = client.parts
        self._client = client
        self._wakes = FileWakes(parts.log)
        self._sessions = ExecSessions(parts.log, is_disabled=parts.settings.disable_remote_exec)
        self._host = HostFigures(parts.settings.alloc_dir, now_ns=parts.now_ns, core_mhz=self._core_mhz)
        self._tasks = TaskFigures(now_ns=parts.now_ns, core_mhz=self._core_mhz)
        self.calls = CallServer(self.handlers(), metrics=parts.metrics)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """What followers of files need in the background, until cancelled."""
        await self._wakes.run(task_status=task_status)

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            access.ALLOC_LOGS: self.logs,
            access.ALLOC_EXEC: self.exec,
            access.FS_LIST: self.list_files,
            access.FS_STAT: self.stat_file,
            access.FS_CAT: self.read_file,
            access.FS_READ_AT: self.read_file,
            access.FS_STREAM: self.stream_file,
            access.FS_SNAPSHOT: self.snapshot,
            node_calls.ALLOC_RESTART: self.restart,
            node_calls.ALLOC_SIGNAL: self.signal,
            node_calls.ALLOC_CHECKS: self.checks,
            node_calls.ALLOC_STATS: self.alloc_stats,
            node_calls.ALLOC_GC: self.collect_one,
            node_calls.NODE_STATS: self.node_stats,
            node_calls.NODE_GC: self.collect_all,
            node_calls.NODE_META_READ: self.read_meta,
            node_calls.NODE_META_APPLY: self.apply_meta,
        }

    # ---- logs and files -------------------------------------------------------------------------------------

    async def logs(self, request: access.AllocLogsRequest, context: CallContext) -> access.StreamReply:
        alloc = self._alloc(request.alloc_id)
        task = _task_name(alloc, request.task)
        if request.type not in STREAMS:
            raise BadRequest(f"log type {request.type[:40]!r}", hint="must provide log type (stdout/stderr)")
        source = LogSource(AllocFiles(alloc.root), task, request.type)
        try:
            await _in_thread(
                lambda: source.open(
                    follow=request.follow, origin=request.origin, offset=request.offset, place=request.place
                )
            )
            return access.StreamReply(bytes_sent=await stream(source, self._wakes, context.send))
        finally:
            source.close()

    async def stream_file(self, request: access.FsStreamRequest, context: CallContext) -> access.StreamReply:
        files = self._files(request.alloc_id)
        source = await _in_thread(lambda: FileSource(files, request))
        try:
            return access.StreamReply(bytes_sent=await stream(source, self._wakes, context.send))
        finally:
            source.close()

    async def list_files(self, request: access.FsRequest, context: CallContext) -> access.FsListReply:
        files = self._files(request.alloc_id)
        found, is_cut = await _in_thread(lambda: files.list(request.path))
        return access.FsListReply(files=found, is_cut=is_cut)

    async def stat_file(self, request: access.FsRequest, context: CallContext) -> access.FsStatReply:
        files = self._files(request.alloc_id)
        return access.FsStatReply(file=await _in_thread(lambda: files.stat(request.path)))

    async def read_file(self, request: access.FsReadRequest, context: CallContext) -> access.StreamReply:
        if request.offset < 0 or request.limit < 0:
            raise BadRequest(f"offset {request.offset} and limit {request.limit}: neither may be negative")
        files = self._files(request.alloc_id)
        opened = files.regular(request.path)
        fd = await _in_thread(opened.__enter__)
        try:
            at, end = request.offset, request.offset + request.limit if request.limit else None
            while True:
                wanted = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - at)
                data = await trio.to_thread.run_sync(read_at, fd, at, wanted, limiter=READERS)
                at += len(data)
                if not data or not await context.send(data):
                    return access.StreamReply(bytes_sent=at - request.offset)
        finally:
            opened.__exit__(None, None, None)

    async def snapshot(self, request: access.FsRequest, context: CallContext) -> access.StreamReply:
        alloc = self._alloc(request.alloc_id)
        sent = 0

        def write(data: bytes) -> None:
            nonlocal sent
            for at in range(0, len(data), CHUNK_BYTES):
                piece = data[at : at + CHUNK_BYTES]
                sent += len(piece)
                if not trio.from_thread.run(context.send, piece):
                    raise Unavailable("nobody reads the snapshot any more")

        tasks = list(alloc.tasks)
        await trio.to_thread.run_sync(write_snapshot, alloc.root, tasks, write, limiter=SNAPSHOTS)
        return access.StreamReply(bytes_sent=sent)

    # ---- tasks ----------------------------------------------------------------------------------------------

    async def exec(self, request: access.AllocExecRequest, context: CallContext) -> access.AllocExecReply:
        alloc = self._alloc(request.alloc_id)
        task = _task(alloc, _task_name(alloc, request.task))
        env = dict(task.environment().values) if task.task_id else {}
        return await self._sessions.run(task.driver, task.task_id, request, env, context)

    async def restart(self, request: node_calls.AllocRestartRequest, context: CallContext) -> Empty:
        runner = self._runner(request.alloc_id)
        if request.task and request.all_tasks:
            raise BadRequest("task name cannot be set when restarting all tasks", hint="leave one of the two out")
        if request.task:
            _task(runner.context, request.task)
        if runner.context.alloc.desired_status.is_terminal or runner.context.terminal.is_set():
            raise BadRequest("restart of an alloc that should not run", hint="`fedsched alloc status` says why")
        await runner.restart(request.task, all_tasks=request.all_tasks)
        return Empty()

    async def signal(self, request: node_calls.AllocSignalRequest, context: CallContext) -> Empty:
        runner = self._runner(request.alloc_id)
        name = self._signal(request.signal)
        alloc = runner.context
        chosen = [_task(alloc, request.task)] if request.task else [one for one in alloc.tasks.values() if one.task_id]
        if not chosen or not all(one.task_id for one in chosen):
            raise BadRequest("no such task is running", hint="`fedsched alloc status` shows which are")
        for task in chosen:
            if not task.driver.capabilities.send_signals:
                raise BadRequest(f"driver {task.driver.name} of task {task.name!r} sends no signals")
        for task in chosen:
            await runner.signal(task.name, name)
        return Empty()

    async def checks(self, request: node_calls.AllocChecksRequest, context: CallContext) -> node_calls.AllocChecksReply:
        self._alloc(request.alloc_id)
        return node_calls.AllocChecksReply(checks=self._client.parts.checks.of(request.alloc_id))

    async def alloc_stats(self, request: node_calls.AllocStatsRequest, context: CallContext) -> Any:
        alloc = self._alloc(request.alloc_id)
        running = [task for task in _running(alloc) if request.task in ("", task.name)]
        return node_calls.AllocStatsReply(usage=await self._tasks.usage(running))

    # ---- the node -------------------------------------------------------------------------------------------

    async def node_stats(self, request: NodeRequest, context: CallContext) -> node_calls.NodeStatsReply:
        self._check_node(request.node_id)
        running = [task for runner in list(self._client.runners.values()) for task in _running(runner.context)]
        found: list[AllocResourceUsage] = []

        async def look_at_tasks() -> None:
            found.append(await self._tasks.usage(running))

        async with open_plain_nursery() as nursery:
            nursery.start_soon(look_at_tasks)
            stats = await self._host.stats()
        return node_calls.NodeStatsReply(stats=stats, allocations=found[0].resource_usage)

    async def collect_all(self, request: NodeRequest, context: CallContext) -> node_calls.GcReply:
        self._check_node(request.node_id)
        return node_calls.GcReply(collected=await self._client.collect_garbage())

    async def read_meta(self, request: NodeRequest, context: CallContext) -> node_calls.NodeMetaReply:
        self._check_node(request.node_id)
        return self._client.meta()

    async def apply_meta(self, request: node_calls.NodeMetaRequest, context: CallContext) -> node_calls.NodeMetaReply:
        self._check_node(request.node_id)
        await self._client.apply_meta(request.meta)
        return self._client.meta()

    async def collect_one(self, request: node_calls.AllocGcRequest, context: CallContext) -> node_calls.GcReply:
        self._runner(request.alloc_id)
        collected = await self._client.collect_garbage(request.alloc_id)
        if not collected:
            raise BadRequest(
                "No such allocation on client, or allocation not eligible for GC",
                hint="only what is over can be removed: stop it first",
            )
        return node_calls.GcReply(collected=collected)

    # ---- finding things -------------------------------------------------------------------------------------

    def _runner(self, alloc_id: str) -> Runner:
        runner = self._client.runner(alloc_id)
        if runner is None:
            raise NotFound(
                f"unknown allocation {alloc_id[:64]!r}",
                hint="it is not on this node any more: what it left behind has been removed",
            )
        return runner

    def _alloc(self, alloc_id: str) -> AllocContext:
        return self._runner(alloc_id).context

    def _files(self, alloc_id: str) -> AllocFiles:
        return AllocFiles(self._alloc(alloc_id).root)

    def _check_node(self, node_id: str) -> None:
        own = self._client.parts.node().id
        if node_id != own:
            raise NotFound(f"this is node {own}, not {node_id[:64]!r}", hint="try again: it may have moved")

    def _signal(self, asked: str) -> str:
        """The full name of a signal; `hup` and `SIGHUP` are the same."""
        name = asked.upper() or DEFAULT_SIGNAL
        name = name if name.startswith("SIG") else f"SIG{name}"
        known = self._client.parts.node().attributes.get(OS_SIGNALS, "")
        allowed = set(known.split(",")) if known else {one.name for one in signal.Signals}
        if name not in allowed or name not in signal.Signals.__members__:
            raise BadRequest(f"unknown signal {asked[:40]!r}", hint=f"there are {', '.join(sorted(allowed))}")
        return name

    def _core_mhz(self) -> float:
        return core_mhz_of(self._client.parts.node())


async def _in_thread(work: Callable[[], Any]) -> Any:
    return await trio.to_thread.run_sync(work, limiter=READERS)


def _running(alloc: AllocContext) -> list[RunningTask]:
    return [RunningTask(name, task.task_id, task.driver) for name, task in alloc.tasks.items() if task.task_id]


def _task_name(alloc: AllocContext, asked: str) -> str:
    """The task that is meant; without a name, the only one there is."""
    names = [task.name for task in alloc.group.tasks]
    if asked in names:
        return asked
    if asked:
        raise NotFound(f"no task {asked[:64]!r} in this allocation", hint=f"there are {', '.join(names)}")
    if len(names) != 1:
        raise BadRequest("must provide task name", hint=f"there are {', '.join(names)}")
    return names[0]


def _task(alloc: AllocContext, name: str) -> TaskContext:
    task = alloc.tasks.get(name)
    if task is None:
        known = ", ".join(sorted(alloc.tasks)) or "none"
        raise NotFound(f"Could not find task runner for task: {name[:64]}", hint=f"there are {known}")
    return task
