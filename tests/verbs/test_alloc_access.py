"""`alloc logs`, `job logs`, `alloc fs`, `alloc exec` and their kin, as a person sees them."""

from __future__ import annotations

import io
import os
import pty
import signal
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsched.drivers.driver import ResourceUse
from fedsched.model.alloc import ClientStatus
from fedsched.model.check import CheckMode, CheckResult, CheckStatus
from fedsched.model.errors import NotFound, Unavailable
from fedsched.rpc.methods.alloc_access import ALLOC_LOGS, AllocLogsRequest, FileFrame, StreamReply
from fedsched.rpc.methods.node_calls import NODE_STATS
from fedsched.verbs import log_follow
from fedsched.verbs.alloc_exec import Escapes, window_changes
from fedsched.verbs.lines import LinePrinter, last_lines
from fedsched.verbs.log_follow import LogReader, LogTarget
from fedsched.verbs.terminal import Terminal
from tests.builders import an_id
from tests.verbs.node_scene import NodeScene, a_scene

ALLOC = an_id(1)


class Watching(io.StringIO):
    """A screen whose reader goes when it has seen something (or so many of them)."""

    def __init__(self, awaited: str, on_seen: Any = None) -> None:
        super().__init__()
        self._awaited = awaited
        self._on_seen = on_seen

    def write(self, text: str) -> int:
        done = super().write(text)
        if self._awaited in self.getvalue():
            if self._on_seen is None:
                raise KeyboardInterrupt
            on_seen, self._on_seen = self._on_seen, None
            self._awaited = on_seen()
        return done


def numbered(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


# ---- logs ---------------------------------------------------------------------------------------------------------


def test_a_log_is_shown_from_its_start(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()
        scene.write(1, "one\n")
        scene.write(1, "two\n", file=1)
        scene.write(1, "trouble\n", kind="stderr")

        assert scene.run(f"alloc logs {ALLOC}").out == "one\ntwo\n"
        assert scene.run(f"alloc logs -stderr {ALLOC} web").out == "trouble\n"
        assert scene.run("logs -job web").out == "one\ntwo\n"
        both = scene.run(f"alloc logs -stdout -stderr {ALLOC}")
        assert (both.out, both.err) == ("one\ntwo\n", "trouble\n")


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ("-tail", "".join(f"line {number}\n" for number in range(1990, 2000))),
        ("-n 2", "line 1998\nline 1999\n"),
        ("-n 0", ""),
        ("-tail -n 1", "line 1999\n"),
        ("-c 5", "1999\n"),
        ("-n 5000", numbered(2000)),
    ],
)
def test_the_end_of_a_log_is_shown_by_lines_or_bytes(tmp_path: Path, flags: str, shown: str) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()
        text = numbered(2000)
        scene.write(1, text[:9000])
        scene.write(1, text[9000:], file=1)

        assert scene.run(f"alloc logs {flags} {ALLOC}").out == shown


def test_several_tasks_and_none_named_are_listed(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc(tasks=("web", "db"))
        scene.write(1, "of db\n", task="db")

        seen = scene.run(f"alloc logs {ALLOC}")
        assert seen.code == 1
        assert "has several tasks:\n  * web\n  * db" in seen.err
        assert scene.run(f"alloc logs -task db {ALLOC}").out == "of db\n"
        assert scene.run(f"alloc logs {ALLOC} db").out == "of db\n"
        assert "Could not find task named: cache" in scene.run(f"alloc logs {ALLOC} cache").err
        assert "name one task" in scene.run(f"alloc logs -task web {ALLOC} db").err


@pytest.mark.parametrize("line", ["alloc logs", "alloc logs -n -1 00", "alloc logs -n 1 -c 1 00", "alloc logs -job"])
def test_a_wrong_command_is_refused(tmp_path: Path, line: str) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()

        assert scene.run(line).code == 1


def test_a_job_without_allocations_has_no_logs(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        seen = scene.run("alloc logs -job web")
        assert "No allocations for job 'web'" in seen.err
        assert scene.run("job logs web").out == "No allocations have written anything yet\n"


def test_following_shows_both_outputs_as_they_grow(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()
        out = scene.write(1, numbered(20))
        scene.write(1, "trouble\n", kind="stderr")

        def more() -> str:
            with out.open("a") as file:
                file.write("and more\n")
            return "and more"

        screen = Watching("line 19", lambda: more())
        with pytest.raises(KeyboardInterrupt):
            scene.run(f"alloc logs -f -n 1 {ALLOC}", out=Then(screen, "and more"))
        assert screen.getvalue() == "line 19\nand more\n"


class Then(io.StringIO):
    """Passes on to a screen, and goes when the last awaited text is there."""

    def __init__(self, screen: Watching, last: str) -> None:
        super().__init__()
        self._screen = screen
        self._last = last

    def write(self, text: str) -> int:
        done = self._screen.write(text)
        if self._last in self._screen.getvalue():
            raise KeyboardInterrupt
        return done


def test_a_follower_whose_links_are_cut_misses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follow, "PAUSE_S", (0.01, 0.05))
    text = numbered(30_000)
    with a_scene(tmp_path) as scene:
        scene.alloc()
        log = scene.write(1, "")
        screen = io.StringIO()
        over = threading.Event()

        def write_and_cut() -> None:
            at = 0
            for turn in range(30):
                with log.open("a") as file:
                    file.write(text[at : at + len(text) // 30 + 1])
                at += len(text) // 30 + 1
                time.sleep(0.01)
                if turn % 5 == 4:
                    assert scene.agent._token is not None
                    scene.agent._token.run_sync_soon(scene.agent.cut_links)
            over.set()

        writer = threading.Thread(target=write_and_cut)
        writer.start()
        terminal = Terminal(screen, io.StringIO(), io.StringIO(), {"FEDSCHED_ADDR": scene.agent.address})
        reader = LogReader(terminal.client, follow=True)
        reader.add(LogTarget(ALLOC, "default", "web"))
        seen = b""
        deadline = time.monotonic() + 20
        for _, frame in reader.frames(lambda: deadline):
            seen += frame.data
            if len(seen) >= len(text):
                break
        writer.join()
        terminal.close()

        assert seen.decode() == text
        assert scene.agent.connections > 3


def test_a_log_whose_files_went_too_early_says_so(tmp_path: Path) -> None:
    async def logs(request: AllocLogsRequest, context: Any) -> StreamReply:
        await context.send(FileFrame(file="alloc/logs/web.stdout.7", offset=5, data=b"left\n", missed_files=3))
        return StreamReply()

    def prepare(scene: NodeScene) -> None:
        scene.more[ALLOC_LOGS] = logs

    with a_scene(tmp_path, prepare) as scene:
        scene.alloc()
        seen = scene.run(f"alloc logs {ALLOC}")

        assert seen.out == "left\n"
        assert "3 log files of web (stdout) were rotated away before they were read" in seen.err


def test_a_node_that_stays_away_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follow, "PAUSE_S", (0.01, 0.02))
    monkeypatch.setattr(log_follow, "PATIENCE_S", 0.1)

    def refuse(request: Any) -> Any:
        raise Unavailable("node is down", hint="start it")

    def prepare(scene: NodeScene) -> None:
        scene.more[ALLOC_LOGS] = refuse

    with a_scene(tmp_path, prepare) as scene:
        scene.alloc()
        seen = scene.run(f"alloc logs -f {ALLOC}")

        assert seen.code == 1
        assert "node is down" in seen.err
        assert len(scene.agent.requests(ALLOC_LOGS)) > 2
        assert scene.run(f"alloc logs {ALLOC}").code == 1


def test_logs_of_a_whole_job_are_lines_behind_where_they_are_from(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc(0xA1, tasks=("web", "db"))
        scene.alloc(0xB2, tasks=("web", "db"))
        scene.alloc(0xC3, client_status=ClientStatus.PENDING)
        scene.write(1, "one\ntwo\n")
        scene.write(1, "no end", task="db")
        scene.write(2, "three\n")

        seen = scene.run("job logs web")

        assert sorted(seen.out.splitlines()) == [
            "00000000 db | no end",
            "00000000 web | one",
            "00000000 web | three",
            "00000000 web | two",
        ]
        only = scene.run("job logs -task web -n 1 web")
        assert sorted(only.out.splitlines()) == ["00000000 web | three", "00000000 web | two"]
        assert scene.run("job logs -group other web").out == "No allocations have written anything yet\n"


def test_an_allocation_that_is_gone_does_not_hide_the_others(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc(1)
        scene.alloc(2)
        scene.write(2, "still here\n")
        gone = scene.client.runners[an_id(1)]
        allocs = list(scene.allocs)
        scene.client.runners[an_id(1)] = None  # type: ignore[assignment]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NodeScene, "allocs", property(lambda self: allocs))
            seen = scene.run("job logs web")
        assert gone

        assert seen.out == "00000000 web | still here\n"
        assert "00000000 web: unknown allocation" in seen.err
        assert seen.code == 0


def test_following_a_job_takes_in_allocations_that_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsched.verbs.alloc_logs.REFRESH_S", 0.05)
    with a_scene(tmp_path) as scene:
        scene.alloc(1)
        scene.write(1, "first\n")

        def replace() -> str:
            scene.alloc(2)
            scene.write(2, "second\n")
            return "second"

        screen = Watching("first", replace)
        with pytest.raises(KeyboardInterrupt):
            scene.run("job logs -f -stdout web", out=Then(screen, "second\n"))
        assert screen.getvalue().splitlines() == ["00000000 web | first", "00000000 web | second"]


# ---- files --------------------------------------------------------------------------------------------------------


def test_directories_are_tables_and_files_are_their_content(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        root = scene.alloc()
        file = root / "web" / "local" / "notes.txt"
        file.write_text(numbered(300))
        os.utime(file, (1_787_308_401, 1_787_308_401))
        file.chmod(0o644)

        listed = scene.run(f"alloc fs {ALLOC}").out.splitlines()
        assert listed[0].split() == ["Mode", "Size", "Modified", "Time", "Name"]
        assert [line.split()[-1] for line in listed[1:]] == ["alloc/", "web/"]
        shown = scene.run(f"alloc fs -H {ALLOC} web/local").out.splitlines()
        assert shown[1].split() == ["-rw-r--r--", "2590", "2026-08-21T10:33:21Z", "notes.txt"]
        assert scene.run(f"alloc fs {ALLOC} web/local/notes.txt").out == numbered(300)
        assert scene.run(f"alloc fs -n 2 {ALLOC} web/local/notes.txt").out == "line 298\nline 299\n"
        assert scene.run(f"alloc fs -tail {ALLOC} web/local/notes.txt").out.count("\n") == 10
        assert scene.run(f"alloc fs -n 1000 {ALLOC} web/local/notes.txt").out == numbered(300)
        assert scene.run(f"alloc fs -c 4 {ALLOC} web/local/notes.txt").out == "299\n"
        assert scene.run(f"alloc fs -stat {ALLOC} web/local/notes.txt").out.splitlines()[1].endswith("notes.txt")
        assert '"Name": "notes.txt"' in scene.run(f"alloc fs -json {ALLOC} web/local").out
        assert '"IsDir": false' in scene.run(f"alloc fs -stat -json {ALLOC} web/local/notes.txt").out


def test_what_is_not_shown_says_why(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()

        secret = scene.run(f"alloc fs {ALLOC} web/SECRETS/token")
        assert (secret.code, secret.out) == (1, "")
        assert "is not shown" in secret.err
        assert "no file 'nope'" in scene.run(f"alloc fs {ALLOC} nope").err
        assert "is negative" in scene.run(f"alloc fs -n -3 {ALLOC} nope").err


def test_a_file_is_followed_over_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsched.verbs.alloc_fs.PAUSE_S", (0.01, 0.05))
    with a_scene(tmp_path) as scene:
        file = scene.alloc() / "web" / "local" / "out.txt"
        file.write_text("first\n")

        def cut() -> str:
            assert scene.agent._token is not None
            scene.agent._token.run_sync_soon(scene.agent.cut_links)
            with file.open("a") as out:
                out.write("second\n")
            return "second"

        screen = Watching("first", cut)
        with pytest.raises(KeyboardInterrupt):
            scene.run(f"alloc fs -f {ALLOC} web/local/out.txt", out=Then(screen, "second\n"))
        assert screen.getvalue() == "first\nsecond\n"


def test_a_followed_file_that_is_deleted_ends(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        file = scene.alloc() / "web" / "local" / "out.txt"
        file.write_text("first\n")
        screen = Watching("first", lambda: file.unlink() or "never")

        seen = scene.run(f"alloc fs -f {ALLOC} web/local/out.txt", out=screen)

        assert seen.code == 0
        assert "file deleted" in seen.err


# ---- terminals ----------------------------------------------------------------------------------------------------


def test_a_commands_input_outputs_and_exit_code_are_passed_on(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()

        seen = scene.run(
            f"alloc exec {ALLOC} sh -c 'cat; echo oops >&2; exit 7'", stdin=io.StringIO("typed\n" * 30_000)
        )

        assert seen.code == 7
        assert seen.out == "typed\n" * 30_000
        assert seen.err == "oops\n"


def test_flags_of_the_command_are_its_own(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()

        assert scene.run(f"alloc exec -i=false {ALLOC} echo -task x").out == "-task x\n"
        assert scene.run("exec -job web -task web echo -t -e").out == "-t -e\n"
        assert scene.run(f"alloc exec {ALLOC} -- printf '%s' -n").out == "-n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (f"{ALLOC}", "<command> is missing"),
        (f"-e ab {ALLOC} true", "not a single character"),
        (f"-t -i=false {ALLOC} true", "-t needs -i=true"),
        (f"-task db {ALLOC} true", "Could not find task"),
    ],
)
def test_a_wrong_exec_is_refused(tmp_path: Path, words: str, why: str) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()
        seen = scene.run(f"alloc exec {words}")

        assert seen.code == 1
        assert why in seen.err


class TerminalFile(io.StringIO):
    """One side of a real terminal."""

    def __init__(self, fd: int, on_write: Callable[[str], object] = lambda text: None) -> None:
        super().__init__()
        self._fd = fd
        self._on_write = on_write

    def write(self, text: str) -> int:
        self._on_write(text)
        return super().write(text)

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd


def test_a_real_terminal_is_passed_through_and_left_as_it_was(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    with a_scene(tmp_path) as scene:
        scene.alloc()
        termios.tcsetwinsize(outer, (40, 100))
        typed = [b"stty size; echo got-$((40+2)); exit 5\n"]
        screen = TerminalFile(inner, lambda text: os.write(outer, typed.pop()) if typed and "ready" in text else 0)
        line = f"alloc exec {ALLOC} sh -c 'echo ready; exec sh'"
        seen = scene.run(line, stdin=TerminalFile(inner), out=screen)

        assert seen.code == 5
        assert "got-42" in screen.getvalue()
        assert "40 100" in screen.getvalue()
        assert termios.tcgetattr(inner) == before
    os.close(outer)
    os.close(inner)


def test_the_escape_ends_a_session_that_does_not_end(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    with a_scene(tmp_path) as scene:
        scene.alloc()
        screen = TerminalFile(inner, lambda text: os.write(outer, b"~.") if "ready" in text else 0)
        line = f"alloc exec {ALLOC} sh -c 'echo ready; exec sleep 60'"
        seen = scene.run(line, stdin=TerminalFile(inner), out=screen)

        assert seen.code == 1
    os.close(outer)
    os.close(inner)


@pytest.mark.parametrize(
    ("pieces", "sent", "is_over"),
    [
        ([b"ls\r"], b"ls\r", False),
        ([b"~."], b"", True),
        ([b"ls\r~."], b"ls\r", True),
        ([b"ls\r", b"~", b"."], b"ls\r", True),
        ([b"a~."], b"a~.", False),
        ([b"~~."], b"~.", False),
        ([b"~x"], b"~x", False),
        ([b"\n~", b"~", b"~."], b"\n~~.", False),
    ],
)
def test_an_escape_counts_only_at_the_start_of_a_line(pieces: list[bytes], sent: bytes, is_over: bool) -> None:
    escapes = Escapes(b"~")
    seen, over = b"", False
    for piece in pieces:
        more, over = escapes.take(piece)
        seen += more

    assert (seen, over) == (sent, is_over)


def test_without_an_escape_everything_goes_through() -> None:
    assert Escapes(b"").take(b"~.") == (b"~.", False)


def test_a_changed_window_wakes_whoever_waits() -> None:
    with window_changes() as changed:
        os.kill(os.getpid(), signal.SIGWINCH)
        assert os.read(changed, 10) == b"x"
        for _ in range(70_000 // 64):
            os.kill(os.getpid(), signal.SIGWINCH)


def test_outside_of_the_main_thread_no_signal_is_taken() -> None:
    seen: list[int] = []

    def look() -> None:
        with window_changes() as changed:
            seen.append(changed)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [-1]


def test_a_command_without_output_and_a_caller_without_input(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()
        reading, writing = os.pipe()
        os.close(writing)
        with open(reading) as empty:
            assert scene.run(f"alloc exec {ALLOC} true", stdin=empty).code == 0


# ---- restarts, signals, checks, clean-up, figures -----------------------------------------------------------------


def test_tasks_are_restarted_and_signalled(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc(tasks=("web", "db"))
        runner = scene.client.runners[ALLOC]

        assert scene.run(f"alloc restart {ALLOC}").out == "Restarted running tasks of allocation 00000000\n"
        assert scene.run(f"alloc restart -task web {ALLOC}").code == 0
        assert scene.run(f"alloc restart -all-tasks {ALLOC}").code == 0
        assert runner.restarts == [("", False), ("web", False), ("", True)]
        assert scene.run(f"alloc restart -all-tasks {ALLOC} web").code == 1
        assert "no-such" in scene.run(f"alloc restart {ALLOC} no-such").err
        assert scene.run(f"alloc signal -s hup {ALLOC} db").out == "Sent hup to task 'db' of allocation 00000000\n"
        assert scene.run(f"alloc signal {ALLOC}").code == 0
        assert runner.signals == [("db", "SIGHUP"), ("web", "SIGINT"), ("db", "SIGINT")]
        assert "unknown signal 'NOPE'" in scene.run(f"alloc signal -s NOPE {ALLOC}").err
        assert scene.run(f"alloc signal -task web {ALLOC} db").code == 1


def test_checks_are_a_table(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()
        assert scene.run(f"alloc checks {ALLOC}").out == "No checks found\n"
        result = CheckResult(
            id="c1", check="alive", service="web", mode=CheckMode.HEALTHINESS, status=CheckStatus.SUCCESS,
            status_code=200, output="ok\n", timestamp_ns=1_787_308_401 * 10**9,
        )  # fmt: skip
        scene.client.checks[ALLOC] = {"c1": result}

        assert scene.run(f"alloc checks {ALLOC}").out.splitlines()[1].split() == [
            *("web", "(group)", "alive", "healthiness", "success")
        ]
        verbose = scene.run(f"alloc checks -verbose {ALLOC}").out.splitlines()[1]
        assert verbose.endswith("200   2026-08-21T10:33:21Z  ok")
        assert '"c1"' in scene.run(f"alloc checks -json {ALLOC}").out


def test_what_is_over_is_removed_on_demand(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()

        assert scene.run(f"alloc gc {ALLOC}").out == "Removed allocation 00000000 from node 00000000\n"
        assert scene.run(f"node gc {scene.client.node.id}").out.startswith("Removed 3 finished allocations from node")
        assert scene.run(f"client gc {scene.client.node.id}").code == 0
        assert scene.client.collected == [ALLOC, "", ""]


def test_a_nodes_figures_are_shown(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        node_id = scene.client.node.id
        plain = scene.run(f"node status {node_id}").out
        whole = scene.run(f"node status -stats {node_id}").out

        assert "Allocation Resource Utilization\nCPU" in plain
        assert "Host Resource Utilization\nCPU" in plain
        assert "Uptime" in plain
        assert "CPU Stats\nCPU    = cpu0" in whole
        assert "Memory Stats\nTotal" in whole
        assert "Disk Stats\n" in whole
        assert "Allocation Directory\n" in whole


def test_a_node_that_cannot_be_asked_is_shown_without_figures(tmp_path: Path) -> None:
    def refuse(request: Any) -> Any:
        raise NotFound("nobody there")

    def prepare(scene: NodeScene) -> None:
        scene.more[NODE_STATS] = refuse

    with a_scene(tmp_path, prepare) as scene:
        seen = scene.run(f"node status -stats {scene.client.node.id}")

        assert seen.code == 0
        assert "No figures from the node: nobody there" in seen.err
        assert "Host Resource Utilization" not in seen.out


def test_an_allocations_figures_are_shown(tmp_path: Path) -> None:
    with a_scene(tmp_path) as scene:
        scene.alloc()
        names = ("RSS", "Usage", "User Mode", "System Mode")
        scene.client.driver.uses = [
            ResourceUse(timestamp_ns=10**9, memory_rss=20 << 20, memory_usage=24 << 20, measured=names),
            ResourceUse(
                timestamp_ns=2 * 10**9,
                memory_rss=20 << 20,
                memory_usage=24 << 20,
                cpu_user_ns=250_000_000,
                measured=names,
            ),
        ]

        shown = scene.run(f"alloc status -stats {ALLOC}").out

        assert "250/100 MHz  24 MiB/300 MiB" in shown
        assert "Memory Stats\nRSS     Usage\n20 MiB  24 MiB" in shown
        assert "CPU Stats\nSystem Mode  User Mode  Percent\n0.00%        25.00%     25.00%" in shown
        scene.client.driver.uses = []
        assert "Memory Stats" not in scene.run(f"alloc status -stats {ALLOC}").out


# ---- lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "count", "found"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 5, b"a\nb\n"),
        (b"", 3, b""),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"a\n", 0, b""),
    ],
)
def test_the_last_lines_are_counted_from_the_end(data: bytes, count: int, found: bytes) -> None:
    assert last_lines(data, count) == found


def test_lines_of_several_logs_are_never_mixed_and_never_grow_without_bound() -> None:
    out = io.StringIO()
    terminal = Terminal(out, io.StringIO(), io.StringIO(), {})
    printer = LinePrinter(terminal)
    one, two = LogTarget(an_id(1), "", "web"), LogTarget(an_id(1), "", "web", "stderr")
    printer.add(one, b"half ")
    printer.add(two, b"other\n")
    printer.add(one, b"line\nx")
    printer.add(two, b"y" * 70_000)
    printer.finish()

    lines = out.getvalue().splitlines()
    assert lines[:2] == ["00000000 web stderr | other", "00000000 web | half line"]
    assert [len(line) for line in lines[2:]] == [70_000 + len("00000000 web stderr | "), len("00000000 web | x")]


def test_colours_tell_allocations_apart() -> None:
    out = io.StringIO()
    terminal = Terminal(out, io.StringIO(), io.StringIO(), {})
    terminal.is_colourful = True
    printer = LinePrinter(terminal)
    for number in (1, 2, 1):
        printer.add(LogTarget(an_id(number), "", "web"), b"x\n")

    first, second, third = out.getvalue().splitlines()
    assert first == third
    assert first != second
