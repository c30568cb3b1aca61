"""Pages of lists: together they are the list, and each costs what it holds."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fedsched.model.errors import BadRequest
from fedsched.model.evaluation import EvaluationStatus
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.alloc import AllocListRequest
from fedsched.rpc.methods.deployment import DeploymentListRequest
from fedsched.rpc.methods.evaluation import EvaluationListRequest
from fedsched.rpc.methods.job import JobListRequest
from fedsched.rpc.methods.node import NodeListRequest
from fedsched.rpc.methods.paging import ListRequest
from fedsched.server.desk import Desk
from fedsched.server.endpoints.alloc import AllocEndpoint
from fedsched.server.endpoints.deployment import DeploymentEndpoint
from fedsched.server.endpoints.evaluation import EvaluationEndpoint
from fedsched.server.endpoints.job import JobEndpoint
from fedsched.server.endpoints.node import NodeEndpoint
from fedsched.server.endpoints.places import PlacesEndpoint
from fedsched.state.tables.alloc_updates import Reap
from fedsched.state.tables.deployments import DeploymentsUpsert, deployment_write
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.namespaces import NamespaceUpsert
from fedsched.state.tables.nodes import node_upsert
from tests.builders import a_deployment, a_job, a_node, an_evaluation, an_id
from tests.costs import Cost, assert_flat, cost_of
from tests.state.worlds import World, ids


class _Parts:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def desk_over(world: World) -> Desk:
    return cast(Desk, _Parts(machine=_Parts(store=world.store)))


def now(call: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a handler that has nothing to wait for."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


def ask(endpoint: Any, request: Any, namespace: str = "") -> Any:
    return now(endpoint.list(request, _Parts(meta=CallMeta(namespace=namespace))))


def pages(list_one: Callable[[Any], Any], request: Any, items: str) -> list[list[str]]:
    """The ids on each page until there is no next one."""
    found = []
    for _ in range(50):
        reply = list_one(request)
        found.append([getattr(item, "id", "") or item.name for item in getattr(reply, items)])
        if not reply.next_token:
            return found
        request = replace(request, next_token=reply.next_token)
    raise AssertionError("the pages do not end")


def joined(parts: Sequence[Sequence[str]]) -> list[str]:
    return [one for part in parts for one in part]


# ---------------------------------------------------------------------- what is on them


def a_world_of_evaluations() -> World:
    world = World()
    writes = []
    for number in range(1, 13):
        job = a_job(f"job-{number % 3}", namespace="prod" if number % 4 == 0 else "default")
        status = (EvaluationStatus.PENDING, EvaluationStatus.BLOCKED, EvaluationStatus.COMPLETE)[number % 3]
        writes.append(evaluation_write(an_evaluation(number, job=job, status=status)))
    world.do(EvaluationsUpsert(evaluations=tuple(writes)))
    return world


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("namespace", ["default", "prod", "*"])
@pytest.mark.parametrize("fields", [{}, {"job_id": "job-1"}, {"status": "blocked"}, {"status": "complete"}])
def test_pages_of_evaluations_are_the_list_in_pieces(fields: dict[str, str], namespace: str, reverse: bool) -> None:
    world = a_world_of_evaluations()
    endpoint = EvaluationEndpoint(desk_over(world))
    rows = [row.evaluation() for row in world.store.evaluations.rows.scan()]
    wanted = [
        one.id
        for one in rows
        if namespace in ("*", one.namespace)
        and fields.get("job_id", one.job_id) == one.job_id
        and fields.get("status", one.status.value) == one.status.value
    ]

    found = pages(
        lambda request: ask(endpoint, request, namespace),
        EvaluationListRequest(per_page=2, reverse=reverse, **fields),
        "evaluations",
    )

    assert joined(found) == (wanted[::-1] if reverse else wanted)
    assert all(len(page) == 2 for page in found[:-1])


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(("prefix", "namespace", "wanted"), [
    ("", "default", ["a", "web", "web-1", "web-2", "z"]),
    ("web", "default", ["web", "web-1", "web-2"]),
    ("web", "*", ["web", "web-1", "web-2", "web-1", "web-9"]),
    ("zz", "*", []),
    ("", "*", ["a", "web", "web-1", "web-2", "z", "b", "web-1", "web-9"]),
])  # fmt: skip
def test_pages_of_jobs_begin_at_their_prefix_in_every_namespace(
    prefix: str, namespace: str, wanted: list[str], reverse: bool
) -> None:
    world = World()
    world.do(NamespaceUpsert(name="prod"))
    for name in ("a", "web", "web-1", "web-2", "z"):
        world.register(a_job(name))
    for name in ("b", "web-1", "web-9"):
        world.register(a_job(name, namespace="prod"))
    endpoint = JobEndpoint(desk_over(world))

    found = pages(
        lambda request: ask(endpoint, request, namespace),
        JobListRequest(prefix=prefix, per_page=2, reverse=reverse),
        "jobs",
    )

    assert joined(found) == (wanted[::-1] if reverse else wanted)


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_pages_of_nodes_go_by_pool(reverse: bool) -> None:
    world = World()
    for number in range(1, 8):
        world.do(node_upsert(a_node(number, node_pool="gpu" if number % 2 else "default")))
    endpoint = NodeEndpoint.__new__(NodeEndpoint)
    endpoint._desk = desk_over(world)

    def found(**fields: Any) -> list[str]:
        request = NodeListRequest(per_page=2, reverse=reverse, **fields)
        listed = joined(pages(lambda one: ask(endpoint, one), request, "nodes"))
        return listed[::-1] if reverse else listed

    assert found() == found(node_pool="all") == [an_id(number) for number in range(1, 8)]
    assert found(node_pool="gpu") == [an_id(number) for number in (1, 3, 5, 7)]
    assert found(prefix=an_id(3)) == [an_id(3)]


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(
    ("namespace", "job_id", "wanted"),
    [("default", "", [1, 3, 5]), ("*", "", [1, 2, 3, 4, 5]), ("default", "web", [1, 3, 5]), ("*", "db", [2, 4])],
)
def test_pages_of_deployments_go_by_namespace_and_job(
    namespace: str, job_id: str, wanted: list[int], reverse: bool
) -> None:
    world = World()
    for number in range(1, 6):
        job = a_job("web") if number % 2 else a_job("db", namespace="prod")
        world.do(DeploymentsUpsert(deployments=(deployment_write(a_deployment(number, job=job)),)))
    endpoint = DeploymentEndpoint(desk_over(world))

    found = joined(
        pages(
            lambda request: ask(endpoint, request, namespace),
            DeploymentListRequest(per_page=2, reverse=reverse, job_id=job_id),
            "deployments",
        )
    )

    assert found == [an_id(number) for number in (wanted[::-1] if reverse else wanted)]


def a_world_of_allocations() -> World:
    world = World()
    for number in (1, 2):
        world.do(node_upsert(a_node(number)))
    world.register(a_job("web"))
    world.register(a_job("db"))
    world.place([9, 3], [0, 1])
    world.place([5, 4], [0, 1], job_id="db")
    world.place([1, 8], [0, 1])
    return world


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, [9, 3, 5, 4, 1, 8]),
        ({"job_id": "web"}, [3, 9, 1, 8]),
        ({"job_id": "db"}, [4, 5]),
        ({"job_id": "nobody"}, []),
        ({"prefix": "00000000"}, [3, 9, 4, 5, 1, 8]),
        ({"prefix": an_id(8)}, [8]),
    ],
)
@pytest.mark.parametrize("per_page", [1, 2, 4])
def test_pages_of_allocations_go_by_age(
    fields: dict[str, Any], wanted: list[int], reverse: bool, per_page: int
) -> None:
    endpoint = AllocEndpoint(desk_over(a_world_of_allocations()))

    found = pages(
        lambda request: ask(endpoint, request), AllocListRequest(per_page=per_page, reverse=reverse, **fields), "allocs"
    )

    assert joined(found) == [an_id(number) for number in (wanted[::-1] if reverse else wanted)]


@pytest.mark.parametrize(("reverse", "wanted"), [(False, [1, 8]), (True, [3, 9])])
def test_a_list_of_allocations_goes_on_although_the_one_it_stopped_at_is_gone(reverse: bool, wanted: list[int]) -> None:
    world = a_world_of_allocations()
    endpoint = AllocEndpoint(desk_over(world))
    token = ask(endpoint, AllocListRequest(per_page=3 if reverse else 2, reverse=reverse)).next_token
    assert token.endswith(an_id(5))
    world.do(Reap(allocs=ids([5, 4])))

    found = ask(endpoint, AllocListRequest(next_token=token, reverse=reverse)).allocs

    assert [one.id for one in found] == [an_id(number) for number in wanted]


def test_a_negative_page_is_refused() -> None:
    world = a_world_of_evaluations()

    with pytest.raises(BadRequest, match="per_page is -1"):
        ask(EvaluationEndpoint(desk_over(world)), EvaluationListRequest(per_page=-1))


# ---------------------------------------------------------------------- what they cost


def a_world_of(size: int) -> World:
    """So many of everything."""
    world = World()
    for number in (1, 2):
        world.do(node_upsert(a_node(number)))
    world.register(a_job("web"))
    world.register(a_job("few"))
    world.place([5_000_000, 5_000_001], [0, 1], job_id="few")
    numbers = list(range(1, size + 1))
    world.place(numbers, [number % 2 for number in numbers])
    evaluations = tuple(
        evaluation_write(an_evaluation(number, job=a_job(f"job-{number % 50}"), status=EvaluationStatus.COMPLETE))
        for number in numbers
    )
    world.do(EvaluationsUpsert(evaluations=evaluations))
    world.do(DeploymentsUpsert(deployments=tuple(deployment_write(a_deployment(number)) for number in numbers)))
    for number in numbers:
        world.do(NamespaceUpsert(name=f"space-{number:05}"))
        if number % 2:
            world.do(node_upsert(a_node(100 + number)))
            world.register(a_job(f"job-{number:05}"))
    return world


def lists(world: World) -> dict[str, Callable[[], Any]]:
    desk = desk_over(world)
    node = NodeEndpoint.__new__(NodeEndpoint)
    node._desk = desk
    middle = an_id(200)
    evaluations, jobs = EvaluationEndpoint(desk), JobEndpoint(desk)
    allocations, deployments, places = AllocEndpoint(desk), DeploymentEndpoint(desk), PlacesEndpoint(desk)
    page: dict[str, Any] = {"per_page": 10}
    return {
        "evaluations": lambda: ask(evaluations, EvaluationListRequest(**page)),
        "evaluations from the middle": lambda: ask(evaluations, EvaluationListRequest(next_token=middle, **page)),
        "evaluations backwards": lambda: ask(evaluations, EvaluationListRequest(reverse=True, **page)),
        "evaluations by prefix": lambda: ask(evaluations, EvaluationListRequest(prefix=middle, **page)),
        "pending evaluations": lambda: ask(evaluations, EvaluationListRequest(status="pending", **page)),
        "jobs": lambda: ask(jobs, JobListRequest(**page)),
        "jobs by prefix": lambda: ask(jobs, JobListRequest(prefix="job-0019", **page)),
        "jobs of all namespaces": lambda: ask(jobs, JobListRequest(prefix="job-0019", **page), "*"),
        "jobs backwards": lambda: ask(jobs, JobListRequest(reverse=True, **page)),
        "nodes": lambda: ask(node, NodeListRequest(**page)),
        "nodes of a pool": lambda: ask(node, NodeListRequest(node_pool="default", next_token=middle, **page)),
        "deployments": lambda: ask(deployments, DeploymentListRequest(next_token=middle, **page)),
        "allocations": lambda: ask(allocations, AllocListRequest(**page)),
        "allocations backwards": lambda: ask(allocations, AllocListRequest(reverse=True, **page)),
        "allocations of a job": lambda: ask(allocations, AllocListRequest(job_id="few", **page)),
        "namespaces": lambda: now(places.namespaces(ListRequest(next_token="space-00200", **page), cast(Any, None))),
    }


@pytest.fixture(scope="module")
def sizes() -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    return lists(a_world_of(400)), lists(a_world_of(800))


@pytest.mark.parametrize("name", lists(World()))
def test_a_page_does_not_grow_with_the_table(
    sizes: tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]], name: str
) -> None:
    costs: list[Cost] = []
    for known in sizes:
        known[name]()
        costs.append(cost_of(known[name]))

    assert_flat(*costs)
