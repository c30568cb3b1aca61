"""Which replicated state a run carries: the small one, or the region's real store with job commands.

With the real store a register is a job, a write its registration with a specification that nobody else writes, and
compare-and-set its check-index. Everything below that is the product's own: command bytes, request ids, tables, image
and digest.
"""

from __future__ import annotations

from collections.abc import Callable

from fedsched.sim.machine import Command, Outcome, RegisterMachine, SimMachine
from fedsched.sim.options import JOB_STORE, Options
from fedsched.state.apply import apply_bytes
from fedsched.state.commands import Envelope, encode_command
from fedsched.state.image import Restorer, save
from fedsched.state.store import Store
from fedsched.state.tables.jobs import JobRegister
from fedsched.state.tables.sessions import RequestId

NAMESPACE = "default"
_LENGTH_BYTES = 4


def new_machine_of(options: Options) -> tuple[Callable[[], SimMachine], Callable[[Command], bytes]]:
    """How to make a server's state, and how a request becomes a log entry for it."""
    if options.has(JOB_STORE):
        return JobMachine, encode_job
    return RegisterMachine, Command.encode


def encode_job(command: Command) -> bytes:
    """A request as a job registration. The attempt's number is its time: no two attempts have the same bytes."""
    register = JobRegister(
        namespace=NAMESPACE,
        id=command.key,
        spec=command.value.encode(),
        enforce_index=command.op == "cas",
        check_index=command.expected,
    )
    request = RequestId(command.session.encode(), command.sequence, command.sequence - 1)
    return encode_command(Envelope(command=register, time_ns=command.attempt, request=request))


class JobMachine:
    """The real store."""

    def __init__(self) -> None:
        self._store = Store()

    def apply(self, index: int, payload: bytes) -> Outcome:
        applied = apply_bytes(self._store, index, payload)
        assert not applied.alarm, applied.alarm
        result = applied.result
        is_repeat = result.index != index or result.code not in ("", "conflict")
        if result.is_done:
            return Outcome(True, result.value["job_modify_index"], is_repeat)
        return Outcome(False, 0, is_repeat)

    def read(self, key: str) -> tuple[str | None, int]:
        row = self._store.jobs.row(NAMESPACE, key)
        if row is None:
            return None, 0
        version = self._store.jobs.version_rows.get(*row.version_key)
        assert version is not None, f"job {key} without its version {row.version}"
        return version.spec.decode(), row.job_modify_index

    def image(self) -> bytes:
        chunks = save(self._store.snapshot())
        return b"".join(len(chunk).to_bytes(_LENGTH_BYTES, "big") + chunk for chunk in chunks)

    def restore(self, image: bytes) -> None:
        restorer = Restorer()
        at = 0
        while at < len(image):
            start = at + _LENGTH_BYTES
            at = start + int.from_bytes(image[at:start], "big")
            restorer.feed(image[start:at])
        self._store = restorer.finish()

    def digest(self) -> bytes:
        return self._store.digest()
