"""Pays, before a server takes part in anything, what the first use of each kind of record costs.

Encoders and decoders are made on first use, and a job's takes tens of milliseconds: on the event loop of a leader that
would be a late heartbeat. So it is with what numpy imports only when it is asked.
"""

from __future__ import annotations

import numpy as np

from fedsched.codec import from_bytes, to_bytes, to_bytes_sparse
from fedsched.model.alloc import Allocation
from fedsched.model.declare import Record
from fedsched.model.deployment import Deployment
from fedsched.model.evaluation import Evaluation
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.node import Node
from fedsched.model.task import Task


def warm_up() -> None:
    """Encode and decode one of each large record. Any thread may do this."""
    group = TaskGroup(name="g", tasks=(Task(name="t", driver="d"),))
    records: tuple[Record, ...] = (
        Job(id="j", name="j", task_groups=(group,)),
        Node(id="n", name="n"),
        Evaluation(id="e"),
        Allocation(id="a"),
        Deployment(id="d"),
    )
    np.unique(np.zeros(1, dtype=np.int64))  # imports more of numpy
    for record in records:
        from_bytes(to_bytes(record), type(record))
        to_bytes_sparse(record)
