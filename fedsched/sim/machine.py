"""A small replicated state: registers with check-index, request ids and a running digest.

Deterministic and total, like the real state store, but a hundred times cheaper, so that most seeds can spend their time
on Raft. A request carries (session, sequence number): a repeated one gets the stored answer and changes nothing. That
table of answers is part of the state and of its image.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

SESSIONS_MAX = 512
"""The oldest session is forgotten beyond this; clients of a run never have as many open."""


class Command(NamedTuple):
    """One request as it lies in the log. `attempt` is unique to one proposal, the rest to the request."""

    session: str
    sequence: int
    attempt: int
    op: str
    key: str
    expected: int
    value: str

    def encode(self) -> bytes:
        return "|".join(map(str, self)).encode()

    @staticmethod
    def decode(payload: bytes) -> Command:
        session, sequence, attempt, op, key, expected, value = payload.decode().split("|")
        return Command(session, int(sequence), int(attempt), op, key, int(expected), value)


class Outcome(NamedTuple):
    """What applying a command gave. `index` is the modify index made, or the one that stood in the way."""

    ok: bool
    index: int  # type: ignore[assignment]  # tuple.index() is of no use here
    is_repeat: bool = False


class SimMachine(Protocol):
    """A replicated state that a simulated server can carry."""

    def apply(self, index: int, payload: bytes) -> Outcome: ...

    def read(self, key: str) -> tuple[str | None, int]:
        """Value and modify index of a key; (None, 0) when there is nothing."""

    def image(self) -> bytes: ...

    def restore(self, image: bytes) -> None: ...

    def digest(self) -> bytes: ...


class RegisterMachine:
    """The small one."""

    def __init__(self) -> None:
        self.registers: dict[str, tuple[str, int]] = {}
        self.sessions: dict[str, tuple[int, bool, int]] = {}
        self._digest = b""

    def apply(self, index: int, payload: bytes) -> Outcome:
        command = Command.decode(payload)
        last = self.sessions.get(command.session)
        if last is not None and last[0] >= command.sequence:
            outcome = Outcome(last[1], last[2], is_repeat=True)
        else:
            outcome = self._change(index, command)
            self.sessions[command.session] = (command.sequence, outcome.ok, outcome.index)
            if len(self.sessions) > SESSIONS_MAX:
                del self.sessions[next(iter(self.sessions))]
        self._digest = blake2b(self._digest + payload + str(outcome).encode(), digest_size=16).digest()
        return outcome

    def _change(self, index: int, command: Command) -> Outcome:
        _, at = self.read(command.key)
        if command.op == "cas" and command.expected != at:
            return Outcome(False, at)
        self.registers[command.key] = (command.value, index)
        return Outcome(True, index)

    def read(self, key: str) -> tuple[str | None, int]:
        return self.registers.get(key, (None, 0))

    def image(self) -> bytes:
        state: dict[str, Any] = {
            "registers": self.registers,
            "sessions": self.sessions,
            "digest": self._digest.hex(),
        }
        return json.dumps(state).encode()

    def restore(self, image: bytes) -> None:
        state = json.loads(image)
        self.registers = {key: (value, index) for key, (value, index) in state["registers"].items()}
        self.sessions = {
            session: (sequence, ok, index) for session, (sequence, ok, index) in state.get("sessions", {}).items()
        }
        self._digest = bytes.fromhex(state["digest"])

    def digest(self) -> bytes:
        return self._digest
