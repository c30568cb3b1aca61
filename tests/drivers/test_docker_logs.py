"""A container's log arrives whole: every byte once, whatever is cut, killed or stepped back in between."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.drivers.docker.engine import Engine
from fedsched.drivers.docker.labels import HandleState
from fedsched.drivers.docker.log_files import NOTE_NAME, LogFiles
from fedsched.drivers.docker.log_follower import LogFollower
from fedsched.drivers.docker.log_places import LogNote, LogPlaces
from fedsched.drivers.docker.streams import STDERR, STDOUT, LogPiece
from fedsched.drivers.docker.transport import Transport
from fedsched.telemetry.log import get_logger
from tests.drivers.fake_engine import FakeContainer, FakeEngine, MemoryEndpoint, Request, frame

NS = 1_000_000_000
BASE = 1_800_000_000


def a_handle(place: Path, **fields: object) -> HandleState:
    logs, private = place / "logs", place / "private"
    logs.mkdir(exist_ok=True)
    private.mkdir(exist_ok=True)
    known: dict[str, object] = {
        "task_id": "a/web/1",
        "alloc_id": "a",
        "task": "web",
        "node_id": "n",
        "container_id": "c" * 64,
        "logs_dir": str(logs),
        "private_dir": str(private),
        "max_files": 100,
        "max_file_bytes": 4096,
    }
    return HandleState(**{**known, **fields})  # type: ignore[arg-type]


def written(place: Path, name: str) -> bytes:
    files = sorted((place / "logs").glob(f"web.{name}.*"), key=lambda path: int(path.suffix[1:]))
    return b"".join(path.read_bytes() for path in files)


def entries_from(seconds: list[int], outputs: list[int], seed: int) -> list[LogPiece]:
    """Numbered entries of an engine that tells whole seconds, whose clock may step back."""
    rng = random.Random(seed)
    found, now = [], BASE
    for number, (step, output) in enumerate(zip(seconds, outputs, strict=False)):
        now += step
        end = b"\n" if rng.random() < 0.8 else b""
        found.append(LogPiece(output, now * NS, b"%d " % number + b"x" * rng.randrange(30) + end))
    return found


def given_since(entries: list[LogPiece], since_s: int) -> list[LogPiece]:
    return [entry for entry in entries if entry.at_ns >= since_s * NS]


def of(entries: list[LogPiece], stream: int) -> bytes:
    return b"".join(entry.data for entry in entries if entry.stream == stream)


STEPS = st.lists(st.sampled_from([0, 0, 0, 0, 1, 1, 3, 60]), min_size=1, max_size=60)
OUTPUTS = st.lists(st.sampled_from([STDOUT, STDOUT, STDERR]), min_size=60, max_size=60)


@given(STEPS, OUTPUTS, st.integers(0, 1000), st.lists(st.integers(0, 59), max_size=6))
def test_a_stream_that_is_cut_goes_on_without_gap_or_repeat(
    steps: list[int], outputs: list[int], seed: int, cuts: list[int]
) -> None:
    entries = entries_from(steps, outputs, seed)
    places = LogPlaces(LogNote("c"), {})
    found = {STDOUT: b"", STDERR: b""}

    for end in [*sorted(cuts), len(entries)]:
        # The engine has so many entries by now, and gives them from the second that is asked for.
        for entry in given_since(entries[: end + 1], places.since_s()):
            half = len(entry.data) // 2
            for part in (entry.data[:half], entry.data[half:]):
                found[entry.stream] += places.take(entry._replace(data=part))
        places.rewind()

    assert found == {STDOUT: of(entries, STDOUT), STDERR: of(entries, STDERR)}


@pytest.mark.parametrize(("steps", "first_cut"), [([0, 5, 0, -2, 0, 1, 0, -2, 3, 9], 0), ([0, 50, 0, -40, 0, 1, 9], 4)])
def test_a_clock_that_steps_back_loses_nothing(steps: list[int], first_cut: int) -> None:
    """A large step that nobody saw cannot be made good: such entries look older than what was read."""
    entries = entries_from(steps, [STDOUT, STDOUT, STDERR, STDOUT, STDERR] * 2, 1)
    for cut in range(first_cut, len(entries)):
        places = LogPlaces(LogNote("c"), {})
        found = b"".join([places.take(entry) for entry in entries[:cut] if entry.stream == STDOUT])
        places.rewind()
        again = given_since(entries, places.since_s())
        found += b"".join(places.take(entry) for entry in again if entry.stream == STDOUT)

        assert found == of(entries, STDOUT), cut


def test_entries_that_the_engine_has_dropped_do_not_swallow_new_ones() -> None:
    places = LogPlaces(LogNote("c"), {})
    places.take(LogPiece(STDOUT, BASE * NS, b"old\n"))
    places.rewind()

    assert places.take(LogPiece(STDOUT, (BASE + 1) * NS, b"new\n")) == b"new\n"


@settings(max_examples=60)
@given(STEPS, OUTPUTS, st.integers(0, 1000), st.lists(st.tuples(st.integers(0, 59), st.booleans()), max_size=5))
def test_files_are_whole_over_agents_that_are_killed_between_writing_and_noting(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[int],
    outputs: list[int],
    seed: int,
    kills: list[tuple[int, bool]],
) -> None:
    place = tmp_path_factory.mktemp("logs")
    handle = a_handle(place, max_file_bytes=200)
    entries = entries_from(steps, outputs, seed)
    note = place / "private" / NOTE_NAME

    for end, is_note_lost in [*sorted(kills), (len(entries), False)]:
        files = LogFiles(handle)
        before = note.read_bytes()
        for entry in given_since(entries[: end + 1], files.places.since_s()):
            files.write([entry])
        if end < len(entries):
            os.close(files._directory)  # killed: what was kept back in memory is gone
            if is_note_lost:
                note.write_bytes(before)
        else:
            files.close()

    assert written(place, "stdout") == of(entries, STDOUT)
    assert written(place, "stderr") == of(entries, STDERR)
    shutil.rmtree(place)


@settings(max_examples=40)
@given(STEPS, OUTPUTS, st.integers(0, 1000), st.lists(st.integers(0, 59), max_size=5))
def test_a_log_read_as_a_file_goes_on_at_its_offset(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], outputs: list[int], seed: int, kills: list[int]
) -> None:
    place = tmp_path_factory.mktemp("logs")
    handle = a_handle(place, max_file_bytes=200)
    entries = entries_from(steps, outputs, seed)

    for end in [*sorted(kills), len(entries)]:
        files = LogFiles(handle)
        files.places.expect_next()
        for number in range(files.places.offset, min(end + 1, len(entries))):
            files.write([entries[number]], number + 1)
        if end < len(entries):
            os.close(files._directory)
        else:
            files.close()

    assert written(place, "stdout") == of(entries, STDOUT)
    assert written(place, "stderr") == of(entries, STDERR)
    shutil.rmtree(place)


def test_the_note_of_another_container_is_not_believed(tmp_path: Path) -> None:
    first = LogFiles(a_handle(tmp_path))
    first.write([LogPiece(STDOUT, BASE * NS, b"one\n")])
    first.close()

    second = LogFiles(a_handle(tmp_path, container_id="d" * 64))
    assert second.places.since_s() == 0
    second.write([LogPiece(STDOUT, BASE * NS, b"two\n")])
    second.close()

    assert written(tmp_path, "stdout") == b"one\ntwo\n"


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b"\xff", b'{"container_id": 5}'])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, garbage: bytes) -> None:
    handle = a_handle(tmp_path)
    (tmp_path / "private" / NOTE_NAME).write_bytes(garbage)

    files = LogFiles(handle)
    files.write([LogPiece(STDERR, BASE * NS, b"x\n")])
    files.close()

    assert written(tmp_path, "stderr") == b"x\n"


def test_a_note_that_cannot_be_written_is_told_and_the_log_goes_on(tmp_path: Path) -> None:
    handle = a_handle(tmp_path, private_dir=str(tmp_path / "nowhere"))

    files = LogFiles(handle)
    files.write([LogPiece(STDOUT, BASE * NS, b"x\n")])
    files.close()

    assert "nowhere" in files.note_error
    assert written(tmp_path, "stdout") == b"x\n"


# the follower


def follow(place: Path, script: Callable[[FakeEngine, FakeContainer, LogFollower], object], **fields: object) -> None:
    """Run a follower beside a script, in virtual time, to the follower's end."""

    async def main() -> None:
        fake = FakeEngine()
        container = fake.containers["c" * 64] = FakeContainer("c" * 64, "web", {}, status="running")
        async with trio.open_nursery() as nursery:
            engine = Engine(Transport(MemoryEndpoint(fake, nursery)))
            follower = LogFollower(engine, a_handle(place, **fields), get_logger("drivers"))
            nursery.start_soon(follower.run)
            await script(fake, container, follower)  # type: ignore[misc]
            await follower.done.wait()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))


def at(second: int) -> str:
    return f"2027-01-15T08:{second // 60:02d}:{second % 60:02d}Z"


def test_the_follower_reads_to_the_end_of_the_container(tmp_path: Path) -> None:
    async def script(fake: FakeEngine, container: FakeContainer, follower: LogFollower) -> None:
        container.write_frames(frame(1, at(1), b"one\n"), frame(2, at(1), b"oops\n"))
        await trio.sleep(5)
        assert written(tmp_path, "stdout") == b"one\n"
        container.write_frames(frame(1, at(6), b"two\n"))
        container.end()

    follow(tmp_path, script)
    assert written(tmp_path, "stdout") == b"one\ntwo\n"
    assert written(tmp_path, "stderr") == b"oops\n"


def test_the_follower_goes_on_after_cuts_refusals_and_nonsense(tmp_path: Path) -> None:
    async def cut_off(request: Request) -> None:
        await request.start_chunks()
        await request.chunk(frame(1, at(1), b"one\n")[:-2])

    async def nonsense(request: Request) -> None:
        await request.start_chunks()
        await request.chunk(frame(1, at(1), b"one\n"))
        await request.chunk(b"this is no frame at all")

    async def script(fake: FakeEngine, container: FakeContainer, follower: LogFollower) -> None:
        fake.script("GET /containers/.*/logs", cut_off, times=1)
        fake.script("GET /containers/.*/logs", nonsense, times=1)
        fake.script_reply("GET /containers/.*/logs", 500, {"message": "not now"}, times=2)
        container.write_frames(frame(1, at(1), b"one\n"), frame(1, at(1), b"two\n"))
        await trio.sleep(30)
        fake.is_down = True
        await trio.sleep(30)
        fake.is_down = False
        container.end()

    follow(tmp_path, script)
    assert written(tmp_path, "stdout") == b"one\ntwo\n"


def test_a_log_that_does_not_end_with_its_container_is_read_to_the_end_without_following(tmp_path: Path) -> None:
    async def endless(request: Request) -> None:
        await request.start_chunks()
        await request.chunk(frame(1, at(1), b"one\n"))
        await trio.sleep_forever()

    async def script(fake: FakeEngine, container: FakeContainer, follower: LogFollower) -> None:
        fake.script("GET /containers/.*/logs", endless, times=1)
        container.write_frames(frame(1, at(1), b"one\n"), frame(1, at(1), b"two\n"))
        await trio.sleep(30)
        container.end()
        follower.container_ended()

    follow(tmp_path, script)
    assert written(tmp_path, "stdout") == b"one\ntwo\n"


def test_the_follower_ends_where_the_engine_has_no_logs(tmp_path: Path) -> None:
    async def script(fake: FakeEngine, container: FakeContainer, follower: LogFollower) -> None:
        fake.script_reply("GET /containers/.*/logs", 501, {"message": "configured logging driver cannot be read"})

    follow(tmp_path, script)
    assert written(tmp_path, "stdout") == b""


def test_podmans_own_file_is_read_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "ctr.log"
    path.write_bytes(b"2027-01-15T08:00:00Z stdout F one\n")

    async def script(fake: FakeEngine, container: FakeContainer, follower: LogFollower) -> None:
        fake.version["Components"] = [{"Name": "Podman Engine"}]
        container.log_path = str(path)
        await trio.sleep(1)
        assert written(tmp_path, "stdout") == b"one\n"
        with path.open("ab") as file:
            file.write(b"2027-01-15T08:00:01Z stdout P half\n2027-01-15T08:00:01Z stderr F oops\n2027-01-15T08")
        await trio.sleep(1)
        assert written(tmp_path, "stdout") == b"one\nhalf"
        with path.open("ab") as file:
            file.write(b":00:02Z stdout F  way\n")
        follower.container_ended()
        container.end()

    follow(tmp_path, script)
    assert written(tmp_path, "stdout") == b"one\nhalf way\n"
    assert written(tmp_path, "stderr") == b"oops\n"


@pytest.mark.parametrize("name", ["gone/ctr.log", "other.log", ""])
def test_without_a_file_podman_is_asked_like_docker(tmp_path: Path, name: str) -> None:
    async def script(fake: FakeEngine, container: FakeContainer, follower: LogFollower) -> None:
        fake.version["Components"] = [{"Name": "Podman Engine"}]
        container.log_path = str(tmp_path / name) if name else ""
        container.write_frames(frame(1, at(1), b"one\n"))
        container.end()

    follow(tmp_path, script)
    assert written(tmp_path, "stdout") == b"one\n"


def test_the_follower_ends_when_the_container_is_removed(tmp_path: Path) -> None:
    async def script(fake: FakeEngine, container: FakeContainer, follower: LogFollower) -> None:
        await trio.sleep(1)
        container.end()
        fake.containers.clear()

    follow(tmp_path, script)


def test_a_directory_that_is_not_there_ends_the_follower(tmp_path: Path) -> None:
    async def script(fake: FakeEngine, container: FakeContainer, follower: LogFollower) -> None:
        return

    follow(tmp_path, script, logs_dir=str(tmp_path / "gone"))


def test_half_a_line_is_written_out_soon(tmp_path: Path) -> None:
    async def script(fake: FakeEngine, container: FakeContainer, follower: LogFollower) -> None:
        container.write_frames(frame(1, at(1), b"prompt> "))
        await trio.sleep(1)
        assert written(tmp_path, "stdout") == b"prompt> "
        container.end()

    follow(tmp_path, script)
