"""An agent that answers for a node: everything about allocations is real but the tasks."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from fedsched.cli.command import run
from fedsched.client.access import ClientAccess
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.summary import JobListStub
from fedsched.model.task_state import TaskState
from fedsched.rpc.method import Method
from fedsched.rpc.methods.alloc import ALLOC_GET, ALLOC_LIST, AllocGetReply, AllocListReply
from fedsched.rpc.methods.job import JOB_LIST, JobListReply
from fedsched.rpc.methods.job_extras import JOB_ALLOCS, JobAllocsReply
from fedsched.rpc.methods.node import NODE_ALLOCS, NODE_GET, NODE_LIST, NodeAllocsReply, NodeGetReply, NodeListReply
from fedsched.rpc.server_side import CallContext
from fedsched.verbs.terminal import Terminal
from tests.client.access_kit import FakeClient
from tests.verbs.commands import NOW_NS
from tests.verbs.fake_agent import FakeAgent, fake_agent


@dataclass
class Seen:
    code: int
    out: str
    err: str


class NodeScene:
    """The client behind the agent, and a person in front of it."""

    def __init__(self, directory: Path) -> None:
        self.client = FakeClient(directory)
        self.access = ClientAccess(self.client)
        self.agent: FakeAgent
        self.more: dict[Method[Any, Any], Any] = {}

    def alloc(self, number: int = 1, *, tasks: tuple[str, ...] = ("web",), **fields: Any) -> Path:
        """One more allocation that runs; its directory."""
        runner = self.client.add(number, tasks=tasks)
        states = {name: TaskState() for name in tasks}
        fields = {"client_status": ClientStatus.RUNNING, "task_states": states, "create_index": number, **fields}
        runner.context.alloc = structs.replace(runner.context.alloc, **fields)
        return runner.context.root

    def write(self, number: int, text: str, *, task: str = "web", kind: str = "stdout", file: int = 0) -> Path:
        logs = list(self.client.runners.values())[number - 1].context.root / "alloc" / "logs"
        path = logs / f"{task}.{kind}.{file}"
        path.write_text(text)
        return path

    @property
    def allocs(self) -> list[Allocation]:
        return [runner.context.alloc for runner in self.client.runners.values()]

    def answers(self) -> Mapping[Method[Any, Any], Any]:
        def serve(handler: Any) -> Callable[[Any, CallContext], Any]:
            return lambda request, context: handler(request, context)

        def listed(request: Any) -> AllocListReply:
            found = [one for one in self.allocs if one.id.startswith(request.prefix)]
            found = [one for one in found if request.job_id in ("", one.job_id)]
            return AllocListReply(allocs=tuple(one.stub() for one in found))

        return {
            **{method: serve(handler) for method, handler in self.access.handlers().items()},
            ALLOC_LIST: listed,
            ALLOC_GET: lambda request: AllocGetReply(alloc=self.client.runners[request.alloc_id].context.alloc),
            JOB_LIST: lambda request: JobListReply(jobs=(JobListStub(id="web", namespace="default"),)),
            JOB_ALLOCS: lambda request: JobAllocsReply(allocs=tuple(one.stub() for one in self.allocs)),
            NODE_LIST: lambda request: NodeListReply(nodes=(self.client.node.stub(),)),
            NODE_GET: lambda request: NodeGetReply(node=self.client.node),
            NODE_ALLOCS: lambda request: NodeAllocsReply(),
            **self.more,
        }

    def run(self, line: str, *, stdin: Any = None, out: Any = None, environ: Mapping[str, str] | None = None) -> Seen:
        out, err = out or io.StringIO(), io.StringIO()
        words = {"FEDSCHED_ADDR": self.agent.address, **(environ or {})}
        terminal = Terminal(out, err, stdin or io.StringIO(""), words, now_ns=lambda: NOW_NS)
        code = run(shlex.split(line), terminal)
        return Seen(code, out.getvalue() if isinstance(out, io.StringIO) else "", err.getvalue())


@contextmanager
def a_scene(directory: Path, prepare: Callable[[NodeScene], None] | None = None) -> Iterator[NodeScene]:
    scene = NodeScene(directory)
    if prepare is not None:
        prepare(scene)
    with fake_agent(scene.answers(), beside=scene.access.run) as agent:
        scene.agent = agent
        yield scene
