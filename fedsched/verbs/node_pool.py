"""`node pool ...`: sets of nodes."""

from __future__ import annotations

from fedsched.model.node_pool import NodePool
from fedsched.model.record import to_api
from fedsched.rpc.methods.places import (
    NODE_POOL_DELETE,
    NODE_POOL_GET,
    NODE_POOL_JOBS,
    NODE_POOL_LIST,
    NODE_POOL_NODES,
    NODE_POOL_UPSERT,
    NameRequest,
    NodePoolUpsertRequest,
)
from fedsched.verbs.finding import job_table, node_table
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.named import apply_named, delete_named, list_named
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import pairs

VERBS = Verbs()
POOL = Argument("pool", "name of the node pool")


@VERBS.verb("node pool list", "list node pools", flags=(JSON, TEMPLATE), regions=Regions.EACH)
def list_(terminal: Terminal, given: Given) -> int:
    return list_named(terminal, given, NODE_POOL_LIST, lambda reply: reply.node_pools)


@VERBS.verb("node pool info", "show one node pool", flags=(JSON, TEMPLATE), arguments=(POOL,), regions=Regions.EACH)
def info(terminal: Terminal, given: Given) -> int:
    found = terminal.client.call(NODE_POOL_GET, NameRequest(name=given["pool"])).node_pool
    if terminal.formatted(given, lambda: to_api(found)):
        return OK
    terminal.write(pairs([("Name", found.name), ("Description", found.description)]))
    terminal.heading("Metadata")
    terminal.write(pairs(sorted(found.meta.items())) if found.meta else "No metadata\n")
    return OK


@VERBS.verb(
    "node pool apply",
    "make or change a node pool",
    flags=(Flag("description", "what it is for", value="text"), JSON),
    arguments=(POOL,),
)
def apply(terminal: Terminal, given: Given) -> int:
    wanted = NodePool(name=given["pool"], description=given["description"] or "")
    request = NodePoolUpsertRequest(node_pool=wanted)
    return apply_named(terminal, given, NODE_POOL_UPSERT, request, f'node pool "{wanted.name}"')


@VERBS.verb("node pool delete", "forget a node pool that nothing uses", flags=(JSON,), arguments=(POOL,))
def delete(terminal: Terminal, given: Given) -> int:
    return delete_named(terminal, given, NODE_POOL_DELETE, given["pool"], f'node pool "{given["pool"]}"')


@VERBS.verb(
    "node pool nodes",
    "list the nodes of a pool",
    flags=(VERBOSE, JSON, TEMPLATE),
    arguments=(POOL,),
    regions=Regions.EACH,
)
def nodes(terminal: Terminal, given: Given) -> int:
    found = terminal.client.call(NODE_POOL_NODES, NameRequest(name=given["pool"])).nodes
    if not terminal.formatted(given, lambda: [to_api(one) for one in found]):
        terminal.write(node_table(found, verbose=given["verbose"]) if found else "No nodes\n")
    return OK


@VERBS.verb(
    "node pool jobs",
    "list the jobs that ask for a pool",
    flags=(JSON, TEMPLATE),
    arguments=(POOL,),
    regions=Regions.EACH,
)
def jobs(terminal: Terminal, given: Given) -> int:
    found = terminal.client.call(NODE_POOL_JOBS, NameRequest(name=given["pool"])).jobs
    if not terminal.formatted(given, lambda: [to_api(one) for one in found]):
        terminal.write(job_table(found, with_namespace=True) if found else "No jobs\n")
    return OK
