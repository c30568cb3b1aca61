"""Runs many rollouts of multi-region jobs from seeds: owners crash, regions are cut off, adopted and lost.

python -m fedsched.sim.rollout_seeds --seeds 1000 --jobs 2
"""

from __future__ import annotations

from typing import Final

from fedsched.sim.many_seeds import Echo, Kind, Line, run_many
from fedsched.sim.pool_seeds import told
from fedsched.sim.rollout_world import World

MODULE: Final = "fedsched.sim.rollout_seeds"


def _live(seed: int, _: Echo) -> Line:
    def run() -> str:
        world = World(seed)
        world.run()
        return f"{world.record.status.value}, {world.restarts} restarts of owners, {world.adoptions} adoptions"

    return told(MODULE, seed, run)


KIND: Final = Kind(MODULE, "rollouts", "simulate rollouts of multi-region jobs", _live)

if __name__ == "__main__":
    raise SystemExit(run_many(KIND))
