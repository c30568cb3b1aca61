from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.telemetry import log as log_module
from fedsched.telemetry.log import DEBUG, INFO, OFF, Event, Hub, get_logger, level_number
from fedsched.telemetry.log_sinks import (
    FileSink,
    StreamSink,
    colour_line,
    json_line,
    rfc3339,
    stderr_sink,
    text_line,
)

WALL = 1_787_308_401.25


def a_hub(level: str = "info", **areas: str) -> tuple[Hub, io.StringIO]:
    out = io.StringIO()
    hub = Hub(wall=lambda: WALL, ring_size=4)
    hub.configure(level=level, sink=StreamSink(out, text_line), areas=areas)
    return hub, out


def an_event(**fields: object) -> Event:
    return Event(WALL, INFO, "raft", "leader_elected", fields)


def test_an_event_becomes_one_line_of_pairs() -> None:
    hub, out = a_hub()

    hub.logger("raft", server="eu-1").info("leader_elected", term=7, took_s=1.25, calm=True, reason=None)

    assert out.getvalue() == (
        f"{rfc3339(WALL)} info  raft leader_elected server=eu-1 term=7 took_s=1.25 calm=true reason=none\n"
    )


def test_bound_fields_go_along_and_later_ones_win() -> None:
    hub, out = a_hub()

    hub.logger("raft", server="eu-1", term=1).bind(peer="eu-2").info("x", term=2)

    assert out.getvalue().endswith("x server=eu-1 term=2 peer=eu-2\n")


def test_nobody_listening_means_nothing_is_kept() -> None:
    hub = Hub()
    log = hub.logger("raft")

    for say in (log.trace, log.debug, log.info, log.warn, log.error):
        say("x")
    log.exception("x", ValueError("y"))

    assert hub.recent() == []
    assert not log.is_on(log_module.ERROR)


def test_each_level_passes_from_its_own_threshold_up() -> None:
    for name in ("trace", "debug", "info", "warn", "error"):
        hub = Hub(wall=lambda: WALL)
        hub.configure(level=name, sink=None)
        log = hub.logger("raft")
        log.trace("trace")
        log.debug("debug")
        log.info("info")
        log.warn("warn")
        log.error("error")

        names = [event.name for event in hub.recent()]

        assert names[0] == name
        assert names[-1] == "error"


def test_an_area_can_be_louder_than_the_rest() -> None:
    hub, out = a_hub("info", raft="debug")

    hub.logger("raft").debug("heard")
    hub.logger("gossip").debug("unheard")

    assert "heard" in out.getvalue()
    assert "unheard" not in out.getvalue()
    assert hub.logger("raft").is_on(DEBUG)


def test_the_ring_keeps_the_newest() -> None:
    hub, _ = a_hub()
    log = hub.logger("raft")

    for number in range(9):
        log.info("x", number=number)

    assert [event.fields["number"] for event in hub.recent()] == [5, 6, 7, 8]


def test_a_subscriber_hears_below_the_sink_and_is_told_what_it_lost() -> None:
    hub, out = a_hub("error")
    woken: list[int] = []
    log = hub.logger("raft")
    subscription = hub.subscribe("debug", capacity=2, on_ready=lambda: woken.append(1))

    for number in range(5):
        log.debug("x", number=number)
    log.trace("unheard")

    assert [event.fields["number"] for event in subscription.take()] == [3, 4]
    assert subscription.lost == 3
    assert woken == [1]
    assert out.getvalue() == ""

    log.debug("again")
    hub.unsubscribe(subscription)
    log.debug("unheard")

    assert [event.name for event in subscription.take()] == ["again"]
    assert woken == [1, 1]


def test_an_exception_brings_its_stack_indented_and_bounded() -> None:
    hub, out = a_hub()
    try:
        raise ValueError("bad\x1b[31m")
    except ValueError as error:
        hub.logger("raft").exception("broke", error, at="apply")

    text = out.getvalue()
    assert 'broke at=apply error="ValueError: bad\\u001b[31m"' in text
    assert "\x1b" not in text
    assert "    | Traceback" in text


def test_a_long_stack_keeps_its_end() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("the end " + "x" * 20_000)
        deep(n - 1)

    hub, _ = a_hub()
    with pytest.raises(ValueError) as caught:
        deep(3)
    hub.logger("raft").exception("broke", caught.value)

    stack = hub.recent()[0].fields["stack"]
    assert stack.startswith("...\n")
    assert len(stack) < 17_000


@given(st.dictionaries(st.sampled_from(["a", "time", "event"]), st.text() | st.floats() | st.binary()))
def test_a_json_line_is_one_line_of_strict_json_whatever_the_values(fields: dict[str, object]) -> None:
    line = json_line(an_event(**fields))

    parsed = json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert line.count("\n") == 1
    assert (parsed["event"], parsed["level"], parsed["area"]) == ("leader_elected", "info", "raft")
    assert ("event_" in parsed) == ("event" in fields)


@given(st.text())
def test_a_value_cannot_forge_a_line_or_move_the_cursor(text: str) -> None:
    line = text_line(an_event(job=text))

    assert line.count("\n") == 1
    assert line[:-1].isprintable()


def test_long_values_are_cut() -> None:
    assert len(text_line(an_event(job="x" * 100_000))) < 5_000
    assert len(text_line(an_event(job=b"x" * 100_000))) < 5_000


def test_other_values_are_shown_by_their_text() -> None:
    assert text_line(an_event(peers=["a"], path=Path("/x"))).endswith(" peers=['a'] path=/x\n")


def test_colour_is_for_terminals_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    coloured, plain, refused, as_json = Terminal(), io.StringIO(), Terminal(), Terminal()
    for stream, sink in (
        (coloured, stderr_sink(coloured)),
        (plain, stderr_sink(plain)),
        (refused, stderr_sink(refused, no_colour=True)),
        (as_json, stderr_sink(as_json, as_json=True)),
    ):
        sink.write(an_event())
        assert ("\x1b[32minfo" in stream.getvalue()) == (stream is coloured)
    assert as_json.getvalue() == json_line(an_event())
    assert coloured.getvalue() == colour_line(an_event())


def test_a_closed_stream_costs_lines_but_no_exception() -> None:
    out = io.StringIO()
    sink = StreamSink(out, text_line)
    out.close()

    sink.write(an_event())
    sink.close()

    assert sink.lost == 1


def test_a_file_rotates_by_size_and_keeps_only_so_many(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    size = len(text_line(an_event(number=1)))
    sink = FileSink(path, text_line, rotate_bytes=size * 2, rotated_files_max=2)

    for number in range(9):
        sink.write(an_event(number=number))
    sink.close()

    assert sorted(p.name for p in tmp_path.iterdir()) == ["agent.log", "agent.log.1", "agent.log.2"]
    assert path.read_text().endswith("number=8\n")
    assert (tmp_path / "agent.log.1").read_text().endswith("number=7\n")
    assert all(p.stat().st_size <= size * 2 for p in tmp_path.iterdir())


def test_a_file_that_keeps_no_older_ones_starts_over(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    sink = FileSink(path, text_line, rotate_bytes=10, rotated_files_max=0)

    sink.write(an_event(number=1))
    sink.write(an_event(number=2))
    sink.close()

    assert path.read_text() == text_line(an_event(number=2))


def test_a_file_can_be_reopened_after_somebody_moved_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    sink = FileSink(path, text_line)
    sink.write(an_event(number=1))
    path.rename(tmp_path / "moved")

    sink.reopen()
    sink.write(an_event(number=2))
    sink.close()

    assert path.read_text().endswith("number=2\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full to stand in for a full disk")
def test_a_full_disk_costs_lines_but_no_exception() -> None:
    sink = FileSink(Path("/dev/full"), text_line)

    sink.write(an_event())
    sink.close()

    assert sink.lost == 1


def test_reconfiguring_closes_the_earlier_sink() -> None:
    class Closing(StreamSink):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    hub = Hub()
    first = Closing(io.StringIO(), text_line)
    hub.configure(sink=first)
    hub.configure(sink=first, level="debug")
    assert first.closed == 0

    hub.configure(sink=None)
    assert first.closed == 1


def test_level_names_are_checked() -> None:
    assert level_number("WARNING") == level_number("warn")
    with pytest.raises(ValueError, match="'loud' is none of trace, debug"):
        level_number("loud")


def test_the_process_hub_is_off_until_configured() -> None:
    log = get_logger("tests")
    assert not log.is_on(log_module.ERROR)

    log_module.configure(level="error", sink=None)
    assert log.is_on(log_module.ERROR)

    log_module.configure(level="off", sink=None)
    assert not log.is_on(OFF - 1)
