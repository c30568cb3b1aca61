"""A small region with something in every table. Its image of each version is kept in `fixtures/state`.

`python -m tests.state.golden` writes the image of the version at hand; images of older versions are never rewritten.
"""

from __future__ import annotations

from pathlib import Path

from fedsched.state.fields import pack
from fedsched.state.image import save
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition, Reap
from fedsched.state.tables.deployments import deployment_write
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.jobs import JobDeregister, JobTag
from fedsched.state.tables.meta import AutopilotConfigSet, ClusterBegin, SchedulerConfigSet
from fedsched.state.tables.namespaces import NamespaceUpsert, NodePoolUpsert
from fedsched.state.tables.nodes import NodeDeregister, node_upsert
from fedsched.state.tables.plans import OfficeBegin, StoppedBatch
from fedsched.state.tables.sessions import RequestId
from tests.builders import a_deployment, a_group, a_job, a_node, an_evaluation, an_id
from tests.state.worlds import EMPTY_MAP, SECOND, World, column, ids, placed_group

FIXTURES = Path(__file__).parents[2] / "fixtures" / "state"
GOLDEN = FIXTURES / "image-1.bin"
"""The image of schema 1."""
GOLDEN_LOG = FIXTURES / "log-1.bin"
"""The log that made it: each entry with its length (32 bits, big-endian) in front."""


def a_golden_world() -> World:
    world = World()
    world.do(ClusterBegin(cluster_id="golden"))
    world.do(OfficeBegin(term=2))
    world.do(SchedulerConfigSet(config=EMPTY_MAP))
    world.do(AutopilotConfigSet(config=EMPTY_MAP))
    world.do(NamespaceUpsert(name="prod", description="where it matters"))
    world.do(NodePoolUpsert(name="gpu"))
    for number in (1, 2, 3):
        world.do(node_upsert(a_node(number)))
    web = a_job("web", groups=[a_group("group", count=3), a_group("other")])
    world.register(web, evaluation=evaluation_write(an_evaluation(1, job=web)))
    world.register(a_job("web", priority=70))
    world.register(a_job("db"), evaluation=evaluation_write(an_evaluation(2, job=a_job("db"))))
    world.do(JobTag(namespace="default", id="web", version=0, name="first", tagged_time_ns=SECOND))
    own, own_sizes = pack([b"\xa0"])
    world.plan(
        "web",
        placed=(
            placed_group([1, 2, 3], [0, 1, 0], flags=1, own_at=column([1]), own=own, own_sizes=own_sizes),
            placed_group([4], [2], group="other", previous=ids([1])),
        ),
        deployments=(deployment_write(a_deployment(9, job=web)),),
    )
    world.place([5, 6], [1, 2], job_id="db")
    client, client_sizes = pack([b"\xa1\x71ClientDescription\x62ok", b""])
    world.do(
        AllocStatusUpdate(
            ids=ids([1, 2]), statuses=bytes([2, 4]), healths=bytes([1, 2]), client=client, client_sizes=client_sizes
        ),
        request=RequestId(b"session", 1),
    )
    world.do(AllocTransition(ids=ids([3]), flags=2))
    world.plan("web", stopped=(StoppedBatch(ids=ids([2]), fields=b"\xa1\x72DesiredDescription\x64gone"),))
    world.do(Reap(allocs=ids([5]), evaluations=(an_id(2),)))
    world.do(NodeDeregister(ids=(an_id(3),)))
    world.do(EvaluationsUpsert(evaluations=(evaluation_write(an_evaluation(3, job=web)),)))
    world.do(JobDeregister(namespace="default", id="db"), request=RequestId(b"session", 2, 1))
    world.send(b"not a command")
    return world


def main() -> None:
    world = a_golden_world()
    FIXTURES.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_bytes(b"".join(save(world.store.snapshot())))
    GOLDEN_LOG.write_bytes(b"".join(len(entry).to_bytes(4, "big") + entry for entry in world.log))


if __name__ == "__main__":
    main()
