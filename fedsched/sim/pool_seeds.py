"""Runs many pools of gossip members, or many rollouts, from seeds: each by itself, faster than a whole federation.

python -m fedsched.sim.pool_seeds --seeds 1000 --jobs 2
python -m fedsched.sim.rollout_seeds --seeds 1000 --jobs 2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedsched.sim import gossip_run
from fedsched.sim.many_seeds import Echo, Kind, Line, run_many
from fedsched.sim.provenance import provenance
from fedsched.sim.verdict import broken_in


def told(module: str, seed: int, run: Callable[[], str]) -> Line:
    """One seed's line; `run` raises what is broken, or says what came of it."""
    try:
        return Line(seed, False, f"seed {seed}: {run()}", "", {})
    except BaseException as error:
        broken = broken_in(error)
        replay = f"replay: python -m {module} --first {seed}"
        return Line(
            seed,
            True,
            f"seed {seed} breaks {str(broken)[:400]}",
            f"seed {seed} breaks {broken}\nversion: {provenance()}\n{replay}",
            {},
        )


MODULE: Final = "fedsched.sim.pool_seeds"


def _live(seed: int, _: Echo) -> Line:
    def run() -> str:
        world = gossip_run.run_seed(seed)
        return f"{len(world.hosts)} hosts, all of one mind after {world.now:.0f} virtual seconds"

    return told(MODULE, seed, run)


KIND: Final = Kind(MODULE, "pools", "simulate pools of gossip members in every kind of trouble", _live)

if __name__ == "__main__":
    raise SystemExit(run_many(KIND))
