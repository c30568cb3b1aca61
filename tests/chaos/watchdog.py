"""`python -m tests.chaos.watchdog RUN`: outlives the harness by as long as it takes to clean up after it.

Its stdin is a pipe whose other end only the harness has. However the harness ends, the kernel closes that end, and what
is left of the run is then removed. A process that the harness was just starting has that end, too, until it becomes its
program and carries the run's mark: so when the pipe ends, everything of the run can be found. A harness that ends in
good order says so first.

It has a session of its own and ignores polite signals: what ends the harness from a terminal must not end it as well.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos.leftovers import GONE_S, Run, remove, remove_abandoned

READY = b"ready\n"
ALL_DONE = b"all done\n"
LOG = "watchdog.log"

SECOND_LOOK_S = 0.2
"""After a crash: a process has no mark to be seen for the microseconds in which it becomes another program."""


class Watchdog:
    """The harness's side. To be closed when the run has cleaned up for itself."""

    def __init__(self, run: Run, directory: Path) -> None:
        self._path = directory / LOG
        with self._path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.watchdog", run.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        with self.process.stdout as answer:
            is_ready = answer.readline() == READY
        if not is_ready:
            self.close()
            raise RuntimeError(f"the watchdog did not start: {self._path.read_text()}")

    def close(self) -> None:
        """Let it go, and wait until it has looked for leftovers; complains if there was nobody to look."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as pipe:  # a dead watchdog is told by its exit code
            pipe.write(ALL_DONE)
        try:
            code = self.process.wait(GONE_S * 2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code:
            raise RuntimeError(f"the watchdog ended with {code}: {self._path.read_text()}")


@contextmanager
def guarded(directory: Path) -> Iterator[Run]:
    """A new run, of which nothing will be left when this process has ended in whatever way.

    First removes what runs left that were not so lucky as to have a watchdog to the end.
    """
    abandoned = remove_abandoned()
    run = Run.mine()
    if not abandoned.is_nothing:
        (directory / LOG).write_text(f"of dead runs: {abandoned}\n")
    watchdog = Watchdog(run, directory)
    try:
        yield run
    finally:
        watchdog.close()


def watch(run: Run) -> int:
    """Wait for the harness to end, then clean up. 1 when something would not go."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    has_ended_well = sys.stdin.buffer.readline() == ALL_DONE
    removed = remove(lambda other: other == run)
    print(f"{run.name} {'has ended' if has_ended_well else 'has died'}: {removed}", file=sys.stderr, flush=True)
    if not has_ended_well:
        time.sleep(SECOND_LOOK_S)
        removed = remove(lambda other: other == run)
        print(f"after a second look: {removed}", file=sys.stderr, flush=True)
    return 1 if removed.left else 0


if __name__ == "__main__":
    named = Run.parse(sys.argv[1])
    if named is None:
        sys.exit(f"not the name of a run: {sys.argv[1]}")
    sys.exit(watch(named))
