"""How a client proves which node it is: with the secret it made up when it first registered; of that only a hash is
kept."""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest

from fedsched.model.errors import NotFound
from fedsched.server.identity import NotAllowed
from fedsched.state.store import State
from fedsched.state.tables.nodes import NodeRow


def secret_hash(secret_id: str) -> bytes:
    return blake2b(secret_id.encode(), digest_size=16, person=b"fedsched-node").digest() if secret_id else b""


def check_secret(row: NodeRow, secret_id: str) -> None:
    """Refuse a caller that does not know a node's secret."""
    if row.secret_hash and not compare_digest(row.secret_hash, secret_hash(secret_id)):
        raise NotAllowed(
            f"node {row.id!r} is known with another secret",
            hint="each client needs a data_dir of its own; purge the old node if this one takes its place",
        )


def known_node(state: State, node_id: str) -> NodeRow:
    row = state.nodes.get(node_id)
    if row is None:
        raise NotFound(f"node {node_id!r} not found", hint="`fedsched node status` lists them")
    return row


def proven_node(state: State, node_id: str, secret_id: str) -> NodeRow:
    """The node that the caller has shown to be."""
    row = known_node(state, node_id)
    check_secret(row, secret_id)
    return row
