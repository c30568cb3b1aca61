"""A call that was passed on to a leader which then falls silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.rpc.relay import relay
from fedsched.server import dispatch
from tests.server.region import Region, run_region


def test_a_call_passed_on_to_a_silent_leader_goes_to_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_on: list[str] = []

    async def scenario(region: Region) -> None:
        is_first_out = trio.Event()

        async def relay_but_not_at_first(context: Any, request: Any, caller: Any, *, me: str) -> Any:
            passed_on.append(me)
            if len(passed_on) == 1:
                is_first_out.set()
                await trio.sleep_forever()
            return await relay(context, request, caller, me=me)

        await region.form(3)
        leader = await region.leader()
        asked, successor = await region.followers()
        monkeypatch.setattr(dispatch, "relay", relay_but_not_at_first)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.register, "web")
            await is_first_out.wait()
            await leader.server.raft.transfer_leadership(successor.id)
            with trio.fail_after(dispatch.PATIENCE_S / 2):
                while nursery.child_tasks:
                    await trio.sleep(0.01)
        assert (await successor.job("web")).id == "web"

    run_region(tmp_path, scenario)
    assert len(passed_on) >= 2
