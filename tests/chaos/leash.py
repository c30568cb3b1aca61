"""`python -I -S leash.py PARENT MARK COMMAND...`: becomes COMMAND, which the kernel kills when process PARENT is gone.

A harness that is killed outright runs none of its own clean-up, so the promise must be the kernel's: a parent death
signal, which holds on through `exec`, `ip netns exec` included. It is asked for here, in the new process, because a
hook between fork and exec is not safe in a program with threads.

The signal follows the *thread* that started the process. Whoever uses this starts and outlives its processes in one
thread, as a run does. Kept free of imports from this tree: it runs before every agent and must cost next to nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
ORPHANED = 79
"""The exit code of a process whose parent was gone before it began."""


def main(parent: int, mark: str, command: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no parent death signal to be had")
    if os.getppid() == parent:
        name, _, value = mark.partition("=")
        os.execvpe(command[0], command, {**os.environ, name: value})
    return ORPHANED  # the parent died before it was watched, so nobody would send that signal


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
