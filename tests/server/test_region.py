"""Three servers in one process: what a region promises to whoever calls it."""

from __future__ import annotations

from pathlib import Path

from tests.server.region import Region, run_region


def test_three_servers_form_a_region_and_a_job_registered_through_a_follower_is_read_back_from_every_server(
    tmp_path: Path,
) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        follower = (await region.followers())[0]

        written = await follower.register("web")

        for member in region.running():
            assert (await member.job("web")).job_modify_index == written.job_modify_index

    run_region(tmp_path, scenario)
