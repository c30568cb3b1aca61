"""An agent that answers what the test tells it to, over a real websocket on loopback.

It runs trio in a thread of its own, because commands block in theirs. Answers are plain functions of the request; one
may raise to refuse, or give a list of items for a stream.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import trio

from fedsched.rpc.context import CallMeta, ReplyMeta
from fedsched.rpc.method import Method
from fedsched.rpc.server_side import CallContext, CallServer
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.link import Link
from fedsched.wire.websocket import accept_websocket

Answer = Callable[..., Any]


class FakeAgent:
    """What was asked, and where it listens."""

    def __init__(self, answers: Mapping[Method[Any, Any], Answer], index: int) -> None:
        self.asked: list[tuple[str, Any, CallMeta]] = []
        self.uploaded = b""
        self.beside: Callable[..., Any] | None = None
        """Runs in the agent's thread as long as it does."""
        self.port = 0
        self.connections = 0
        self._index = index
        self._server = CallServer({method: self._handler(answer) for method, answer in answers.items()})
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._links: list[Link] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests(self, method: Method[Any, Any]) -> list[Any]:
        return [request for name, request, _ in self.asked if name == method.name]

    def metas(self, method: Method[Any, Any]) -> list[CallMeta]:
        return [meta for name, _, meta in self.asked if name == method.name]

    def cut_links(self) -> None:
        """Drop every connection as a dying server would; for handlers, so it runs in the agent's thread."""
        for link in self._links:
            link.close(message="cut by the test")
        self._links.clear()

    def run(self) -> None:
        trio.run(self._serve)

    def wait_started(self) -> None:
        assert self._started.wait(10)

    def stop(self) -> None:
        assert self._token is not None
        self._token.run_sync_soon(self._scope.cancel)

    def _handler(self, answer: Answer) -> Any:
        takes_context = len(inspect.signature(answer).parameters) > 1

        async def handle(request: Any, context: CallContext) -> Any:
            self.asked.append((context.method.name, request, context.meta))
            context.reply_meta = ReplyMeta(index=self._index, server="fake")
            if context.method.flow.name == "UP":
                self.uploaded = b"".join([item async for item in context])
            reply = answer(request, context) if takes_context else answer(request)
            if inspect.isawaitable(reply):
                reply = await reply
            if isinstance(reply, tuple):
                reply, items = reply
                for item in items:
                    await context.send(item)
            return reply

        return handle

    async def _serve(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                if self.beside is not None:
                    await nursery.start(self.beside)
                listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
                self.port = listeners[0].socket.getsockname()[1]
                self._token = trio.lowlevel.current_trio_token()
                nursery.start_soon(trio.serve_listeners, self._serve_one, listeners)
                self._started.set()
                await trio.sleep_forever()

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with trio.open_nursery() as nursery:
            try:
                carrier = await accept_websocket(nursery, stream, "a command")
            except CarrierClosed:
                return
            link = Link(carrier, is_opener=False, handler=self._server)
            self._links.append(link)
            await link.run()
            nursery.cancel_scope.cancel()


@contextmanager
def fake_agent(
    answers: Mapping[Method[Any, Any], Answer], *, index: int = 7, beside: Callable[..., Any] | None = None
) -> Iterator[FakeAgent]:
    agent = FakeAgent(answers, index)
    agent.beside = beside
    thread = threading.Thread(target=agent.run)
    thread.start()
    try:
        agent.wait_started()
        yield agent
    finally:
        agent.stop()
        thread.join(10)
        assert not thread.is_alive()
