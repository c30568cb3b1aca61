"""The entry point of the program.

Most commands live for a tenth of a second, half of it spent on starting and ending the interpreter. So this module
imports next to nothing, and a brief command travels light:

- no garbage collection: there is not enough garbage to be worth a look;
- no `typing_extensions`: where it is installed, msgspec imports it (9 ms with all it pulls in) for names that every
  Python we run on has in `typing`;
- no tidying up at the end (8 ms): outputs are flushed, links are closed, the system takes back the rest.

Commands that last (an agent, a simulation) do none of this.
"""

from __future__ import annotations

import os
import sys

LASTING = frozenset({"agent", "bench", "demo", "dev", "sim"})
INTERRUPTED = 130
"""What a shell reports for a program ended by Ctrl-C."""


def main() -> int:
    """Run the command of this process; the exit code is the answer. Brief commands end the process here."""
    is_brief = sys.argv[1:2] == [] or sys.argv[1] not in LASTING
    if is_brief:
        _travel_light()
    code = _run()
    if is_brief:
        sys.stderr.flush()
        os._exit(code)
    return code


def _run() -> int:
    from fedsched.cli.command import run
    from fedsched.verbs.terminal import Terminal

    try:
        code = run(sys.argv[1:], Terminal(sys.stdout, sys.stderr, sys.stdin, os.environ))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has seen enough. Point stdout elsewhere, or the interpreter complains while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _travel_light() -> None:
    import gc

    gc.disable()
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
