"""`python -m tests.wan.asker OUT WHAT PER_S ADDRESS...`: asks without end and writes down how long each answer took.

A process of its own, so that it can stand in a namespace and so that nothing else of the harness delays it. `WHAT` is
`own`, reads and writes of the region itself in turns, at its servers in turns; or the name of another region, of which
the jobs are asked for. One request after the other, `PER_S` a second as far as answers come in time.

A line for each request, JSON: when it began (wall clock), how long it took, what was wrong (empty: nothing).
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

from fedsched.model.errors import FedschedError
from fedsched.rpc.methods.job import JOB_LIST, JOB_REGISTER, JobListRequest, JobRegisterRequest
from fedsched.sdk.client import Client
from fedsched.sdk.connect import connect
from tests.e2e.calls import job_with

OWN = "own"
KEYS = 20
"""Jobs that the writes are about, in turns."""


class Answer(NamedTuple):
    """One request, as it went."""

    at: float
    took_s: float
    error: str


def read_answers(path: Path) -> list[Answer]:
    """All that was written so far, but for a line that is just being written."""
    text = path.read_text() if path.exists() else ""
    return [Answer(*json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def ask_own(client: Client, number: int) -> None:
    if number % 2:
        client.call(JOB_LIST, JobListRequest(prefix="none"))
    else:
        client.call(JOB_REGISTER, JobRegisterRequest(job=job_with(f"job-{number // 2 % KEYS}", str(number))))


def ask_far(client: Client, region: str) -> None:
    client.call(JOB_LIST, JobListRequest(), region=region)


def main(path: str, what: str, per_s: float, addresses: list[str]) -> None:
    clients = [connect(address) for address in addresses]
    began = time.monotonic()
    with Path(path).open("a", buffering=1) as out:
        for number in itertools.count():
            time.sleep(max(0.0, began + number / per_s - time.monotonic()))
            client = clients[number // 2 % len(clients)]
            at, start, error = time.time(), time.perf_counter(), ""
            try:
                if what == OWN:
                    ask_own(client, number)
                else:
                    ask_far(client, what)
            except FedschedError as wrong:
                error = str(wrong)
            took_s = time.perf_counter() - start
            out.write(json.dumps(Answer(at, took_s, error)) + "\n")
            if took_s > 1 / per_s:
                began = time.monotonic() - number / per_s  # what was missed is not made up for in a burst


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:])
