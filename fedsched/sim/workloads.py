"""Users of a region: clients that write and read registers, and an operator who changes the membership.

A client has one request open at a time. A write carries (session, sequence); when its outcome stays unknown (no answer
in time) the client asks again, perhaps elsewhere, with the same id. When it gives up, the operation stays open in the
history for ever and the client goes on under a new session. Every attempt is a proposal of its own with a number of its
own, so that the checkers can tell which one was refused, lost or committed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Protocol

from fedsched.raft.membership import (
    AddLearner,
    BadChange,
    Config,
    ConfigChange,
    Demote,
    Promote,
    Readdress,
    Remove,
    Replace,
)
from fedsched.raft.messages import Refused
from fedsched.sim.cores import SimServer
from fedsched.sim.linear import CAS, GET, Operation
from fedsched.sim.machine import Command, Outcome
from fedsched.sim.region import Region, info
from fedsched.sim.schedule import LEADER, Action

ATTEMPTS_MAX = 5
"""During chaos a client gives up after so many; after healing it insists."""


class Ledger(Protocol):
    """Where the checkers hear of what users were told."""

    def attempted(self, attempt: int, request: str, payload: bytes) -> None: ...

    def accepted(self, attempt: int, index: int, term: int) -> None: ...

    def ended(self, attempt: int, outcome: str, index: int) -> None: ...

    def read_floor(self) -> int:
        """The highest index known to be committed anywhere at this moment."""

    def read_confirmed(self, server_id: str, floor: int, index: int) -> None: ...


class _Request:
    """One operation of one client until it ends."""

    __slots__ = (
        "attempt",
        "attempts",
        "call",
        "expected",
        "is_done",
        "is_unsure",
        "key",
        "op",
        "sequence",
        "session",
        "slot",
        "value",
    )

    def __init__(
        self, op: str, key: str, slot: int, value: str, expected: int, session: str, sequence: int, call: int
    ) -> None:
        self.op = op
        self.key = key
        self.slot = slot
        self.value = value
        self.expected = expected
        self.session = session
        self.sequence = sequence
        self.call = call
        self.attempts = 0
        self.attempt = 0
        """The number of the attempt whose answer is awaited."""
        self.is_done = False
        self.is_unsure = False
        """Some attempt may have happened without our knowing."""


class Client:
    """One user with one open request at a time."""

    def __init__(self, users: Users, number: int) -> None:
        self.name = f"c{number}"
        self._users = users
        self._region = users.region
        self._world = users.region.world
        self._rng = self._world.stream(f"client/{number}")
        self._sessions = 1
        self._sequence = 0
        self._values = 0
        self._seen: dict[str, int] = {}
        self._open: _Request | None = None
        options = users.region.options
        self._patience_us = int(options.election_us * (0.4 + self._rng.random()))
        self._loses_replies = 0.05 if options.has("drop") else 0.0

    @property
    def is_idle(self) -> bool:
        return self._open is None

    def begin(self, op: str, key: str, slot: int, size: int) -> None:
        """Start an operation, unless one is still open."""
        if self._open is not None:
            return
        self._values += 1
        self._sequence += 1
        value = f"{self.name}.{self._values}" + "." * size
        expected = self._seen.get(key, 0)
        session = f"{self.name}.{self._sessions}"
        self._open = _Request(op, key, slot, value, expected, session, self._sequence, self._world.now)
        self._try(self._open)

    def _try(self, request: _Request) -> None:
        server = self._pick(request)
        request.attempts += 1
        request.attempt = attempt = next(self._users.attempts)
        if server is not None:
            self._world.after(
                self._delay_us(),
                server,
                "request",
                self._arrive,
                server,
                request,
                attempt,
                outlives=True,
                detail=self.name,
            )
        self._world.after(self._patience_us, None, "patience", self._timeout, request, attempt, detail=self.name)

    def _pick(self, request: _Request) -> SimServer | None:
        """First whom the schedule says, then one after the other."""
        if request.attempts == 0 or self._rng.random() < 0.3:
            return self._region.at(request.slot)
        members = self._region.members()
        return members[(request.attempts + self._rng.randrange(2)) % len(members)]

    def _delay_us(self) -> int:
        return 200 + int(self._rng.random() * 3_000)

    # --- at the server ------------------------------------------------------------------------------------------------

    def _arrive(self, server: SimServer, request: _Request, attempt: int) -> None:
        if not server.is_up:
            return
        if request.op == GET:
            floor = self._users.ledger.read_floor()
            server.read(request.key, lambda word, what: self._read_answer(server, request, attempt, floor, word, what))
            return
        session = request.session
        command = Command(session, request.sequence, attempt, request.op, request.key, request.expected, request.value)
        payload = self._users.encode(command)
        self._users.ledger.attempted(attempt, f"{session}/{request.sequence}", payload)
        server.propose(payload, lambda word, what: self._write_answer(server, request, attempt, word, what))

    def _write_answer(self, server: SimServer, request: _Request, attempt: int, word: str, what: Any) -> None:
        ledger = self._users.ledger
        if word == "accepted":
            ledger.accepted(attempt, what.first, what.term)
            return
        index, outcome = what if word == "committed" else (0, None)
        ledger.ended(attempt, word, index)
        self._reply(server, request, attempt, word, outcome)

    def _read_answer(
        self, server: SimServer, request: _Request, attempt: int, floor: int, word: str, what: Any
    ) -> None:
        if word == "confirmed":
            self._users.ledger.read_confirmed(server.id, floor, what)
            return
        self._reply(server, request, attempt, word, what)

    def _reply(self, server: SimServer, request: _Request, attempt: int, word: str, what: Any) -> None:
        if not self._users.is_healed and self._rng.random() < self._loses_replies:
            return
        self._world.after(
            self._delay_us(), None, "reply", self._hear, request, attempt, word, what, detail=f"{self.name} {word}"
        )

    # --- back at the client -------------------------------------------------------------------------------------------

    def _hear(self, request: _Request, attempt: int, word: str, what: Any) -> None:
        if request.is_done:
            return
        if word in ("committed", "read"):
            self._finish(request, word, what)
        elif attempt == request.attempt:
            self._again(request)

    def _timeout(self, request: _Request, attempt: int) -> None:
        if not request.is_done and attempt == request.attempt:
            request.is_unsure = True
            self._again(request)

    def _again(self, request: _Request) -> None:
        if request.attempts >= ATTEMPTS_MAX and not self._users.is_healed:
            self._give_up(request)
            return
        request.attempt = 0
        pause_us = int(self._rng.random() * self._patience_us * 0.5)
        self._world.after(pause_us, None, "again", self._try_again, request, detail=self.name)

    def _try_again(self, request: _Request) -> None:
        if not request.is_done:
            self._try(request)

    def _give_up(self, request: _Request) -> None:
        """Refused every time: it never happened. Otherwise nobody knows, and a new session begins."""
        request.is_done = True
        self._open = None
        self._sessions += 1
        if request.op != GET and request.is_unsure:
            self._users.history.append(self._operation(request, None, None, info=True))

    def _finish(self, request: _Request, word: str, what: Any) -> None:
        request.is_done = True
        self._open = None
        result: Any
        if word == "read":
            result = list(what)
            self._seen[request.key] = what[1]
        else:
            outcome: Outcome = what
            self._seen[request.key] = outcome.index
            result = outcome.index if outcome.ok else None
        self._users.history.append(self._operation(request, result, self._world.now, info=False))

    def _operation(self, request: _Request, result: Any, ret: int | None, *, info: bool) -> Operation:
        argument: Any = None
        if request.op == CAS:
            argument = [request.expected, request.value]
        elif request.op != GET:
            argument = request.value
        return Operation(
            client=self.name,
            op=request.op,
            key=request.key,
            argument=argument,
            result=result,
            call=request.call,
            ret=ret,
            info=info,
        )

    def open_operation(self) -> Operation | None:
        """A write still open when the run ends: it may yet have happened."""
        request = self._open
        return None if request is None or request.op == GET else self._operation(request, None, None, info=True)


class Users:
    """All clients and the operator of one run."""

    def __init__(self, region: Region, ledger: Ledger, encode: Callable[[Command], bytes] = Command.encode) -> None:
        self.region = region
        self.ledger = ledger
        self.encode = encode
        self.attempts = count(1)
        self.history: list[Operation] = []
        self.is_healed = False
        self.clients = [Client(self, number) for number in range(region.options.clients)]
        self._wishes: dict[str, Callable[[dict[str, Any]], None]] = {
            "operation": self._operation,
            "config": self._config,
            "transfer": self._transfer,
            "snapshot": self._snapshot,
            "burst": self._burst,
        }

    def knows(self, kind: str) -> bool:
        return kind in self._wishes

    def carry_out(self, action: Action) -> None:
        self._wishes[action.kind](action.args)

    def is_idle(self) -> bool:
        return all(client.is_idle for client in self.clients)

    def whole_history(self) -> list[Operation]:
        still_open = [operation for client in self.clients if (operation := client.open_operation()) is not None]
        return [*self.history, *still_open]

    def last_wishes(self) -> None:
        """After healing: every client that is free writes once and then reads, wherever it likes."""
        for number, client in enumerate(self.clients):
            client.begin("put", f"k{number % self.region.options.keys}", number % len(self.region.slots), 0)

    def last_reads(self) -> None:
        for number, client in enumerate(self.clients):
            client.begin("get", f"k{number % self.region.options.keys}", number % len(self.region.slots), 0)

    # --- wishes -------------------------------------------------------------------------------------------------------

    def _operation(self, args: dict[str, Any]) -> None:
        self.clients[args["client"] % len(self.clients)].begin(args["op"], args["key"], args["slot"], args["size"])

    def _transfer(self, args: dict[str, Any]) -> None:
        leader = self.region.leader()
        if leader is None:
            return
        target = None if args["to"] == LEADER else self.region.at(args["to"])
        leader.transfer(None if target is None else target.id)

    def _snapshot(self, args: dict[str, Any]) -> None:
        server = self.region.at(args["slot"])
        if server is not None:
            server.make_snapshot(args["keep"])

    def _burst(self, args: dict[str, Any]) -> None:
        """Several writes at once, to a key that nobody reads, by somebody who does not wait for answers."""
        server = self.region.at(args["slot"])
        session = ""
        for number in range(args["count"]):
            if server is None or not server.is_up or server.is_paused:
                return
            attempt = next(self.attempts)
            session = session or f"burst{attempt}"
            payload = self.encode(Command(session, number + 1, attempt, "put", "burst", 0, f"v{attempt}"))
            self.ledger.attempted(attempt, f"{session}/{number + 1}", payload)
            server.propose(payload, partial(self._burst_answer, attempt))

    def _burst_answer(self, attempt: int, word: str, what: Any) -> None:
        if word == "accepted":
            self.ledger.accepted(attempt, what.first, what.term)
        else:
            self.ledger.ended(attempt, word, what[0] if word == "committed" else 0)

    def _config(self, args: dict[str, Any]) -> None:
        """Ask whoever leads (or thinks so) for a change that fits the config it knows."""
        leaders = self.region.leaders()
        if not leaders:
            return
        leader = leaders[args["pick"] % len(leaders)] if args["any_leader"] else leaders[0]
        if leader.core is None:
            return
        status = leader.core.status()
        if any(self.region.is_gone(member) for member in status.config.members):
            return  # an operator first replaces what was lost
        change = self._change(args["what"], args["pick"], status.config)
        if change is None:
            return
        attempt = next(self.attempts)
        based_on = status.config_index if args["is_checked"] else None
        try:
            leader.change_config(change, based_on, lambda word, what: self._config_answer(attempt, word, what))
        except BadChange:
            return

    def _config_answer(self, attempt: int, word: str, what: Any) -> None:
        if isinstance(what, Refused):
            self.region.world.trace.remark(self.region.world.now, "", f"membership change refused: {what.reason}")

    def _change(self, what: str, pick: int, config: Config) -> ConfigChange | None:
        voters, learners = sorted(config.voters), sorted(config.learners)
        if what == "add":
            return self._addition(config, pick)
        if what == "promote" and learners:
            return Promote(learners[pick % len(learners)])
        if what == "demote" and len(voters) > 1:
            return Demote(voters[pick % len(voters)])
        if what == "remove" and len(voters) > 1:
            members = sorted(config.members)
            return Remove(members[pick % len(members)])
        if what == "replace" and voters and learners:
            return Replace(voters[pick % len(voters)], learners[pick % len(learners)])
        if what == "readdress" and voters:
            return Readdress(info(voters[pick % len(voters)], f"moved{pick}:4647"))
        return None

    def _addition(self, config: Config, pick: int) -> ConfigChange | None:
        """A server that stands outside, old or new."""
        outside = [server for server in self.region.members() if server.id not in config.members]
        server = outside[pick % len(outside)] if outside and pick % 2 else self.region.add_server()
        return None if server is None else AddLearner(info(server.id))
