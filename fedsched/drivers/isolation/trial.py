"""Isolates a process that does nothing, told how on standard input, and says on standard output what went wrong.

A program of its own (`python -m fedsched.drivers.isolation.trial`): opening namespaces leaves its mark on the process
that does it, and an agent has threads, which the kernel would not have it do with.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from fedsched.drivers.isolation import enter, frozen


def main() -> None:
    frozen.become_unwritable()
    sys.stdout.write(attempt(json.load(sys.stdin)))


def attempt(isolation: dict[str, Any]) -> str:
    """What went wrong; empty if nothing did."""
    try:
        jail = enter.prepare(isolation)
    except enter.IsolationFailed as failure:
        return str(failure)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _isolate(isolation, jail, writing)
    os.close(writing)
    reason = os.read(reading, 4096).decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    enter.release(jail)  # its remains are reaped by whoever inherits them when this program ends
    return reason or ("" if status == 0 else f"an isolated process ended with {status}")


def _isolate(isolation: dict[str, Any], jail: enter.Jail, writing: int) -> None:
    code = 1
    try:
        enter.isolate(isolation, jail)
        code = 0
    except Exception as error:
        os.write(writing, str(error).encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
