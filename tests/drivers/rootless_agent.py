"""The exec driver in an agent of an ordinary user, run as a program: starts a task, looks into it, stops it.

rootless_agent.py <directory> <where packages are>...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    sys.path[:0] = sys.argv[2:]
    import trio

    from fedsched.drivers.driver import ExecCommand, TaskConfig
    from fedsched.drivers.exec import ExecDriver
    from fedsched.drivers.registry import DriverHost
    from tests.drivers.conformance import make_dirs
    from tests.drivers.supervised import retire

    place = Path(sys.argv[1])

    async def scenario() -> dict[str, object]:
        driver = ExecDriver(DriverHost(state_dir=place / "exec"))
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            found = await driver.detect()
            told: dict[str, object] = {"health": found.health.value, "why": found.description, **found.attributes}
            if found.health.value == "healthy":
                config = TaskConfig(
                    id="alloc/web/1",
                    alloc_id="alloc",
                    namespace="default",
                    job_id="job",
                    group="group",
                    task="web",
                    node_id="node",
                    dirs=make_dirs(place / "alloc", "web"),
                    config={"command": "/bin/sh", "args": ["-c", "id -u; exec sleep 3600"]},
                    env={"PATH": "/usr/bin:/bin"},
                )
                await driver.start_task(config)
                inside = ("/bin/sh", "-c", "ls -d /root; cat /proc/1/comm; id -u; touch /local/mine /etc/mine; exit 3")
                ran = await driver.exec_task(config.id, ExecCommand(inside), 20.0)
                await driver.stop_task(config.id, 20.0, "SIGTERM")
                ended = await driver.wait_task(config.id)
                await driver.destroy_task(config.id)
                told |= {"ran": [ran.exit_code, ran.output.decode()], "ended": [ended.exit_code, ended.signal]}
                told["log"] = (config.dirs.logs / "web.stdout.0").read_text()
            nursery.cancel_scope.cancel()
        retire(place / "exec")
        return told

    print(json.dumps(trio.run(scenario)))


if __name__ == "__main__":
    main()
