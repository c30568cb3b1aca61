"""Metadata of a node that changes while it runs: what holds, what is refused, and that it outlives the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsched.client.node_meta import KEYS_MAX, VALUE_BYTES_MAX, applied, from_journal, merged, to_journal
from fedsched.codec import CodecError
from fedsched.model.alloc import ClientStatus
from fedsched.model.constraint import Constraint
from fedsched.model.errors import BadRequest
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.rpc.methods.node import NodeRequest
from fedsched.rpc.methods.node_calls import NODE_META_APPLY, NODE_META_READ, NodeMetaRequest
from tests.builders import a_group, a_job
from tests.client.client_kit import running, until
from tests.client.test_client import Site, with_site

STATIC = {"rack": "r1", "zone": "a"}


def test_what_is_set_lies_over_the_settings_and_null_hides_a_key_of_theirs() -> None:
    dynamic = applied(STATIC, {}, {"rack": "r2", "zone": None, "owner": "ops"})

    assert merged(STATIC, dynamic) == {"owner": "ops", "rack": "r2"}
    assert dynamic == {"owner": "ops", "rack": "r2", "zone": None}


def test_null_forgets_a_key_that_the_settings_do_not_have() -> None:
    dynamic = applied(STATIC, {"owner": "ops", "rack": "r2"}, {"owner": None, "rack": None})

    assert dynamic == {"rack": None}
    assert merged(STATIC, dynamic) == {"zone": "a"}
    assert merged({"zone": "b"}, dynamic) == {"zone": "b"}  # settings that were read anew show through


def test_the_journal_gives_back_what_it_was_given() -> None:
    dynamic = {"rack": "r2", "zone": None}

    assert from_journal(to_journal(dynamic)) == dynamic
    with pytest.raises(CodecError):
        from_journal(b"\xff nonsense")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "missing required Meta object"),
        ({"": "x"}, "'' is invalid as a metadata key"),
        ({"a b": "x"}, "'a b' is invalid"),
        ({"a..b": "x"}, "'a..b' is invalid"),
        ({"x" * 200: "x"}, "is invalid as a metadata key"),
        ({"big": "x" * (VALUE_BYTES_MAX + 1)}, f"'big' has {VALUE_BYTES_MAX + 1} bytes"),
        ({f"k{number}": "x" for number in range(KEYS_MAX + 1)}, f"{KEYS_MAX + 1} keys"),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_the_reason(change: dict[str, str | None], told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        applied(STATIC, {}, change)


def test_a_label_set_at_run_time_wakes_jobs_that_wait_for_it_and_survives_a_restart(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client(meta=STATIC)) as client:
            await client.wait_registered()
            picky = Constraint(l_target="${meta.tier}", r_target="fast", operand="=")
            job = a_job("web", groups=[a_group(count=1)], constraints=(picky,))
            await site.caller.call(JOB_REGISTER, JobRegisterRequest(job=job))

            async def call(method: Any, request: Any) -> Any:
                reply, _ = await site.caller.call(method, request)
                return reply

            node_id = client.identity.node_id
            change = {"tier": "fast", "zone": None}
            told = await call(NODE_META_APPLY, NodeMetaRequest(node_id=node_id, meta=change))
            assert told.meta == {"rack": "r1", "tier": "fast"}
            assert told == await call(NODE_META_READ, NodeRequest(node_id=node_id))
            await until("it is placed", lambda: len(site.known(ClientStatus.RUNNING)) == 1)
            assert (await site.node(client)).meta == {"rack": "r1", "tier": "fast"}
            with pytest.raises(BadRequest, match="missing required Meta object"):
                await call(NODE_META_APPLY, NodeMetaRequest(node_id=node_id))

        async with running(site.client(meta=STATIC)) as again:
            assert again.meta() == told
            assert again.node().meta == {"rack": "r1", "tier": "fast"}

    with_site(tmp_path, scenario)


def test_kept_metadata_that_cannot_be_read_does_not_stop_the_agent(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client(meta=STATIC)) as client:
            await client._journal.put_node("dynamic-meta", b"\xff")
        async with running(site.client(meta=STATIC)) as again:
            assert again.meta().meta == STATIC

    with_site(tmp_path, scenario)
