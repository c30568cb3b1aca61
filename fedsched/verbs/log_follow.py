"""Reading logs of many tasks at once, from a plain thread, and going on where they were when the way to them is lost.

Each log has its place (file and position). When a server, a link or the agent on the node goes, the streams that ran
over it are asked for again from their places, through whichever agent answers, so that no line is missed or repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fedsched.model.errors import FedschedError
from fedsched.rpc.methods.alloc_access import ALLOC_LOGS, AllocLogsRequest, FileFrame, LogPlace, StreamReply

if TYPE_CHECKING:
    from fedsched.sdk.client import Client
    from fedsched.sdk.streams import Stream

WEATHER_STATUS: Final = frozenset({429, 503, 504})
PAUSE_S: Final = (0.1, 2.0)
PATIENCE_S: Final = 120.0
"""How long a follower tries to get back to a log that it cannot reach."""
LOOK_S: Final = 1.0


@dataclass(slots=True)
class LogTarget:
    """One output of one task."""

    alloc_id: str
    namespace: str
    task: str
    kind: str = "stdout"
    origin: str = "start"
    offset: int = 0
    place: LogPlace | None = None
    """Where its reader is; None before the first frame."""


@dataclass(slots=True)
class _Reading:
    target: LogTarget
    stream: Stream[StreamReply] | None = None
    due_at: float = 0.0
    pause_s: float = PAUSE_S[0]
    lost_at: float | None = None
    why: FedschedError | None = None


@dataclass(slots=True)
class LogReader:
    """Reads any number of logs over one client."""

    client: Client
    follow: bool
    on_trouble: Callable[[LogTarget, FedschedError], bool] = field(default=lambda target, error: False)
    """Told of a log that cannot be read for good; false to let the error out."""
    now: Callable[[], float] = time.monotonic
    _readings: list[_Reading] = field(default_factory=list)

    def add(self, target: LogTarget) -> None:
        self._readings.append(_Reading(target))

    def __len__(self) -> int:
        return len(self._readings)

    def frames(self, until: Callable[[], float] | None = None) -> Iterator[tuple[LogTarget, FileFrame]]:
        """What comes, until every log is at its end (for followers: for ever), or until a time that the caller sets.

        Signs of life are left out.
        """
        while self._readings:
            is_idle = True
            for reading in list(self._readings):
                for frame in self._take(reading):
                    is_idle = False
                    yield reading.target, frame
            if until is not None and self.now() >= until():
                return
            if is_idle and self._readings:
                self.client.wait(self._wait_s(until))

    def _take(self, reading: _Reading) -> Iterator[FileFrame]:
        try:
            if reading.stream is None:
                if self.now() < reading.due_at:
                    return
                reading.stream = self._open(reading.target)
            stream = reading.stream
            while (frame := stream.take()) is not None:
                self._arrived(reading, frame)
                if frame.data or frame.file_event:
                    yield frame
            if stream.is_over:
                stream.reply()
                self._readings.remove(reading)
        except FedschedError as error:
            self._judge(reading, error)

    def _arrived(self, reading: _Reading, frame: FileFrame) -> None:
        reading.lost_at, reading.why, reading.pause_s = None, None, PAUSE_S[0]
        if frame.file:
            number = frame.file.rpartition(".")[2]
            reading.target.place = LogPlace(file=int(number) if number.isdecimal() else 0, offset=frame.offset)

    def _open(self, target: LogTarget) -> Stream[StreamReply]:
        request = AllocLogsRequest(
            alloc_id=target.alloc_id,
            task=target.task,
            type=target.kind,
            follow=self.follow,
            origin=target.origin,
            offset=target.offset,
            place=target.place,
        )
        return self.client.open_stream(ALLOC_LOGS, request, namespace=target.namespace)

    def _judge(self, reading: _Reading, error: FedschedError) -> None:
        """Wait out the weather; anything else ends this log."""
        now = self.now()
        is_weather = error.http_status in WEATHER_STATUS
        reading.stream = None
        if is_weather:
            reading.lost_at = now if reading.lost_at is None else reading.lost_at
            if now - reading.lost_at < PATIENCE_S and (self.follow or reading.target.place is not None):
                reading.due_at = now + reading.pause_s
                reading.pause_s = min(2 * reading.pause_s, PAUSE_S[1])
                if error.code == "unavailable":
                    self.client.close()  # it may have been the link: the next one dials anew
                return
        self._readings.remove(reading)
        if not self.on_trouble(reading.target, error):
            raise error

    def _wait_s(self, until: Callable[[], float] | None) -> float:
        now = self.now()
        due = [one.due_at - now for one in self._readings if one.stream is None]
        if until is not None:
            due.append(until() - now)
        return max(0.0, min([LOOK_S, *due]))
