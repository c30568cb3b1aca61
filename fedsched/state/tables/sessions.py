"""Requests that were sent twice happen once: the results of recent requests, kept with the state.

A session is one proposer's stream of requests, numbered from 1. A request says which of its own numbers it still waits
for (`acked` is below all of them), so that results nobody will ask for again can go. A number that is not beyond what
went is never carried out again: it is refused, because what became of it is no longer known.

Both tables are bounded. Sessions idle for an hour (by log time, not by anybody's clock) are forgotten, and beyond
`SESSIONS_MAX` the one idle longest goes.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec
from msgspec import structs

from fedsched.codec import STORED_LIMITS, from_bytes, to_bytes
from fedsched.state.past import Keeper, Past
from fedsched.state.result import Result, refused
from fedsched.state.table import Key, Row, Table, TableReader

SESSIONS_MAX: Final = 10_000
WINDOW: Final = 1_024
"""Results kept per session: more requests than this are never outstanding at once."""
IDLE_NS: Final = 3_600 * 1_000_000_000
FORGET_AT_ONCE: Final = 4
"""Idle sessions forgotten per command, so that none of them takes long; two would already win against one new."""


class RequestId(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Which request this is."""

    session: bytes
    sequence: int
    acked: int = 0
    """All requests of the session up to this one have had their answer."""


class SessionRow(Row):
    """One proposer."""

    table: ClassVar[str] = "sessions"

    session: bytes
    floor: int = 0
    """Results up to this number are gone."""
    time_ns: int = 0

    @property
    def key(self) -> Key:
        return (self.session,)


class SessionResultRow(Row):
    """What became of one request."""

    table: ClassVar[str] = "session_results"

    session: bytes
    sequence: int
    index: int
    code: str = ""
    result: bytes = b""

    @property
    def key(self) -> Key:
        return (self.session, self.sequence)

    def hashed(self) -> object:
        """Without the words of the result: a newer version may say the same thing better."""
        return (self.session, self.sequence, self.index, self.code)


class SessionsReader:
    """Sessions, live or as a snapshot saw them."""

    def __init__(self, rows: TableReader[SessionRow], results: TableReader[SessionResultRow]) -> None:
        self.rows = rows
        self.results = results

    def known_result(self, request: RequestId, index: int) -> Result | None:
        """The result of this very request if it has been carried out; a refusal if that is no longer known."""
        session = self.rows.get(request.session)
        if session is None:
            return None
        row = self.results.get(request.session, request.sequence)
        if row is not None:
            return from_bytes(row.result, Result, STORED_LIMITS)
        if request.sequence <= session.floor:
            return refused(
                index,
                "conflict",
                f"request {request.sequence} is older than all results kept for its session",
                hint="look at the state before trying again: the first attempt may have worked",
            )
        return None


class Sessions(SessionsReader):
    """The live sessions."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[SessionRow] = Table(keeper, SessionRow, {"idle": lambda row: (row.time_ns,)})
        self.result_table: Table[SessionResultRow] = Table(keeper, SessionResultRow)
        super().__init__(self.table, self.result_table)

    def view(self, past: Past) -> SessionsReader:
        return SessionsReader(self.table.view(past), self.result_table.view(past))

    def remember(self, request: RequestId, result: Result, time_ns: int) -> None:
        """Keep a result, and let go of those that nobody will ask for."""
        session = self.table.get(request.session) or SessionRow(session=request.session)
        row = SessionResultRow(
            session=request.session,
            sequence=request.sequence,
            index=result.index,
            code=result.code,
            result=to_bytes(result),
        )
        self.result_table.put(row)
        floor = max(session.floor, min(request.acked, request.sequence - 1))
        floor = max(floor, request.sequence - WINDOW)
        self._drop_results(request.session, floor)
        self.table.put(structs.replace(session, floor=floor, time_ns=time_ns))
        self._forget_idle(time_ns)

    def _drop_results(self, session: bytes, floor: int) -> None:
        gone = []
        for row in self.result_table.scan(session):
            if row.sequence > floor:
                break
            gone.append(row.key)
        for key in gone:
            self.result_table.delete(*key)

    def _forget_idle(self, now_ns: int) -> None:
        for _ in range(FORGET_AT_ONCE):
            oldest = next(self.table.by("idle"))
            if oldest.time_ns >= now_ns - IDLE_NS and len(self.table) <= SESSIONS_MAX:
                return
            for row in list(self.result_table.scan(oldest.session)):
                self.result_table.delete(*row.key)
            self.table.delete(oldest.session)
