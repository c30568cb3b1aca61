"""The hooks around real tasks of raw_exec: what a process finds when it starts, and what is left when it is gone."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from msgspec import structs

from fedsched.client.alloc_runner import AllocRunner
from fedsched.client.check_book import CheckBook
from fedsched.client.context import ClientParts, Servers
from fedsched.client.fetch.landlock import landlock_version
from fedsched.client.hooks.artifacts import ArtifactsHook
from fedsched.client.hooks.dirs import AllocDirHook, TaskDirHook
from fedsched.client.hooks.disk import DiskHook
from fedsched.client.hooks.migrate import DiskMigrationHook, UpstreamHook
from fedsched.client.hooks.payload import PayloadHook
from fedsched.client.hooks.validate import ValidateHook
from fedsched.client.hooks.volumes import VolumesHook
from fedsched.client.mounts import mounts_below
from fedsched.drivers.exec import ExecDriver
from fedsched.drivers.isolation.probe import why_not
from fedsched.drivers.raw_exec import RawExecDriver
from fedsched.drivers.registry import DriverHost
from fedsched.env.real import RealEnv
from fedsched.model.alloc import ClientStatus
from fedsched.model.node import HostVolumeInfo
from fedsched.model.policies import RestartPolicy
from fedsched.model.task import DispatchPayload, TaskArtifact
from fedsched.model.volume import VolumeMount, VolumeRequest
from tests.builders import a_group, a_job, a_node, a_task, an_alloc
from tests.client.alloc_world import LiveServers, MemoryJournal
from tests.client.archives import Entry, packed, tar
from tests.client.hook_contexts import parts
from tests.drivers.supervised import retire

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no landlock"),
]
TASK_HOOKS = (ValidateHook, TaskDirHook, PayloadHook, VolumesHook, ArtifactsHook)
ALLOC_HOOKS = (AllocDirHook, UpstreamHook, DiskMigrationHook, DiskHook)


CGROUP = f"fedsched-hooks-{os.getpid()}"


def remove_cgroups() -> list[str]:
    """Take the parents away that were made for this test; names of tasks that are still in them."""
    left = []
    for parent in Path("/sys/fs/cgroup").glob(f"*/{CGROUP}*"):
        for folder, _, _ in os.walk(parent, topdown=False):
            os.rmdir(folder)
            if folder != str(parent) and Path(folder).name not in ("share", "reserve"):
                left.append(folder)
    return left


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server of a directory."""
    (tmp_path / "web").mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path / "web"))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for kind in ("raw_exec", "exec"):
            retire(tmp_path / kind)
        assert remove_cgroups() == []
        assert mounts_below(tmp_path) == []


@asynccontextmanager
async def a_client(place: Path, kind: str = "raw_exec", **fields: Any) -> AsyncIterator[ClientParts]:
    host = DriverHost(state_dir=place / kind, settings={}, denied_users=(), cgroup_parent=CGROUP)
    driver = RawExecDriver(host) if kind == "raw_exec" else ExecDriver(host)
    found = parts(place, servers=cast(Servers, LiveServers()), **fields)
    found = ClientParts(
        **{name: getattr(found, name) for name in ClientParts.__slots__}
        | {"drivers": lambda _: driver, "env": RealEnv(), "checks": CheckBook(), "now_ns": time.time_ns}
    )
    found.has_contact.set()
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        yield found
        nursery.cancel_scope.cancel()


def an_allocation(
    script: str,
    kind: str = "raw_exec",
    group: dict[str, Any] | None = None,
    job: dict[str, Any] | None = None,
    **task: Any,
) -> Any:
    policy = RestartPolicy(attempts=0, mode="fail")
    given = a_task(
        "web", driver=kind, config={"command": "/bin/sh", "args": ["-c", script]}, restart_policy=policy, **task
    )
    made = a_job(type="batch", groups=[a_group(tasks=[given], restart_policy=policy, **(group or {}))], **(job or {}))
    return structs.replace(an_alloc(job=made), create_time_ns=1)


async def run_to_the_end(client: ClientParts, alloc: Any) -> AllocRunner:
    journal = MemoryJournal()
    runner = AllocRunner(
        client,
        alloc,
        journal,
        stored=None,
        on_change=lambda _: None,
        task_hooks=TASK_HOOKS,
        alloc_hooks=ALLOC_HOOKS,
    )
    with trio.fail_after(60):
        async with trio.open_nursery() as journal.nursery:
            await runner.run()
    return runner


@pytest.mark.parametrize("kind", ["raw_exec", "exec"])
def test_a_task_finds_everything_it_was_promised(tmp_path: Path, web: str, kind: str) -> None:
    """The same for a process of the host and for one that is alone and nobody: only where `srv` is differs."""
    if kind == "exec" and (reason := trio.run(why_not, tmp_path)):
        pytest.skip(f"this host cannot isolate tasks: {reason}")
    (tmp_path / "web" / "app.tar.gz").write_bytes(
        packed(tar([Entry("run", b"#!/bin/sh\necho from-artifact\n", mode=0o755)]), "gz")
    )
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "kept").write_text("on the volume")
    script = f"""
        cd "$NOMAD_TASK_DIR/.." || exit 1
        local/app/run > local/out
        cat local/input.json >> local/out
        cat srv/data/kept >> local/out
        echo " $NOMAD_META_color $FEDSCHED_TASK_NAME $GREETING" >> local/out
        cp local/out "$NOMAD_ALLOC_DIR/data/out"
        echo secret > "$NOMAD_SECRETS_DIR/mine" || exit 2
        echo "{kind}"
    """
    alloc = an_allocation(
        script,
        kind,
        env={"GREETING": "hello ${node.datacenter}"},
        artifacts=(TaskArtifact(getter_source=f"{web}/app.tar.gz", relative_dest="local/app"),),
        dispatch_payload=DispatchPayload(file="input.json"),
        volume_mounts=(VolumeMount(volume="v", destination="/srv/data"),),
        group={"volumes": {"v": VolumeRequest(name="v", type="host", source="data")}, "meta": {"color": "blue"}},
        job={"payload": b'{"n": 1}', "dispatched": True},
    )
    node = a_node(host_volumes={"data": HostVolumeInfo(name="data", path=str(tmp_path / "volume"))})

    async def main() -> None:
        async with a_client(tmp_path, kind, node=node) as client:
            runner = await run_to_the_end(client, alloc)
            states = runner.report().task_states
            assert runner.report().client_status is ClientStatus.COMPLETE, json.dumps(str(states))
            out = (runner.context.root / "alloc" / "data" / "out").read_text()
            assert out == 'from-artifact\n{"n": 1}on the volume blue web hello dc1\n'
            await runner.destroy()
            assert not runner.context.root.exists()

    trio.run(main)
    assert (tmp_path / "volume" / "kept").read_text() == "on the volume"


@pytest.mark.parametrize(
    ("fields", "event", "reason"),
    [
        ({"artifacts": (TaskArtifact(getter_source="WEB/gone"),)}, "Failed Artifact Download", "404"),
        ({"artifacts": (TaskArtifact(getter_source="WEB/evil.tar"),)}, "Failed Artifact Download", "climbs out"),
        (
            {"artifacts": (TaskArtifact(getter_source="WEB/evil.tar?archive=false", relative_dest="../../.."),)},
            "Failed Artifact Download",
            "leads out",
        ),
        ({"env": {"A": "${B}", "B": "${A}"}}, "Failed Validation", "A -> B -> A"),
        ({"env": {"A": "x" * 200_000}}, "Failed Validation", "at most"),
        ({"user": "no-such-user"}, "Failed Validation", "no-such-user"),
    ],
)
def test_hostile_and_broken_tasks_fail_with_their_reason_and_start_nothing(
    tmp_path: Path, web: str, fields: dict[str, Any], event: str, reason: str
) -> None:
    (tmp_path / "web" / "evil.tar").write_bytes(tar([Entry("../../../canary", b"x")]))
    if "artifacts" in fields:
        one = fields["artifacts"][0]
        fields = {"artifacts": (structs.replace(one, getter_source=one.getter_source.replace("WEB", web)),)}
    alloc = an_allocation("touch local/started", **fields)

    async def main() -> None:
        async with a_client(tmp_path) as client:
            runner = await run_to_the_end(client, alloc)
            report = runner.report()
            assert report.client_status is ClientStatus.FAILED
            told = [one for one in report.task_states["web"].events if one.type == event]
            assert told, report.task_states["web"].events
            assert reason in (told[0].download_error or told[0].validation_error)
            assert not (runner.context.root / "web" / "local" / "started").exists()
            await runner.destroy()

    trio.run(main)
    assert {entry.name for entry in tmp_path.iterdir()} <= {"web", "raw_exec", "allocs", "state"}
    assert os.listdir(tmp_path / "allocs") == []
