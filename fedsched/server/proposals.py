"""Commands on their way into the log: stamped, encoded once, replicated, and their result told apart from refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fedsched.env.env import Env
from fedsched.raft.runner import RaftRunner
from fedsched.rpc.context import RequestID
from fedsched.state.commands import Envelope, encode_command
from fedsched.state.fields import Command
from fedsched.state.result import Result
from fedsched.state.tables.sessions import RequestId

NS: Final = 1_000_000_000


class Proposals:
    """What endpoints and leader services change the state with."""

    def __init__(self, raft: RaftRunner, env: Env) -> None:
        self._raft = raft
        self._env = env

    def now_ns(self) -> int:
        """Wall time to stamp on records, before they are proposed and never after."""
        return int(self._env.wall() * NS)

    async def propose(
        self,
        command: Command,
        *,
        request: RequestID | None = None,
        epoch: int | None = None,
        is_essential: bool = False,
        on_appended: Callable[[int], None] | None = None,
    ) -> Result:
        """Replicate one command and return what became of it; a refusal by the state is raised as its error."""
        request_id = RequestId(request.session.encode(), request.seq) if request is not None else None
        data = encode_command(Envelope(command=command, time_ns=self.now_ns(), request=request_id))
        _, answer = await self._raft.propose(data, epoch=epoch, is_essential=is_essential, on_appended=on_appended)
        result: Any = answer
        assert isinstance(result, Result)
        error = result.error()
        if error is not None:
            raise error
        return result
