"""From one job with a `multiregion` block to the job of each region.

A region's job is the submitted one with that region's differences laid over it. It keeps the block, so that every
region can show the whole and its deployment knows that it has peers. Checks that need one job only are `job_problems`;
here is what needs the list of known regions, or the regions' jobs side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from msgspec.structs import replace

from fedsched.model.group import TaskGroup
from fedsched.model.job import DEFAULT_NODE_POOL, Job, JobType, Multiregion, MultiregionRegion, MultiregionStrategy
from fedsched.model.job_problems import MAX_COUNT
from fedsched.model.problem import InvalidJob, Problem, one_of

ON_FAILURE: Final = ("", "fail_all", "fail_local")
ON_UNREACHABLE: Final = ("", "fail", "skip", "wait")
PROGRESS_DEADLINE_S: Final = 600.0
"""What a group without an update strategy is given to get healthy, as `UpdateStrategy` has it."""
SILENCE_S: Final = 600.0
"""Beyond the time that a region may take for its own part: ten minutes for the network to come back."""

ADOPT_AFTER_MIN_S: Final = 60.0
"""Less would take an election, or a moment's trouble in the network, for a lost region."""
ADOPTERS_MIN: Final = 3
"""Listed regions: of two, one that hears nothing cannot tell which of them is cut off."""


def region_names(job: Job) -> tuple[str, ...]:
    """The regions of a multi-region job in their order; none for any other job."""
    return tuple(region.name for region in _block(job).regions)


def owner_of(job: Job, received_at: str) -> str:
    """The region that drives the rollout: where it was submitted if that is listed, else the first of the list."""
    names = region_names(job)
    return received_at if received_at in names or not names else names[0]


def job_for_region(job: Job, name: str) -> Job:
    """The job as this region registers it. The region must be listed."""
    region = next((one for one in _block(job).regions if one.name == name), None)
    if region is None:
        raise InvalidJob(
            [Problem("Multiregion.Regions", f'job "{job.id}" does not list region "{name}"')],
            hint=f"it lists {', '.join(region_names(job)) or 'none'}",
        )
    return replace(
        job,
        region=name,
        datacenters=region.datacenters or job.datacenters or ("*",),
        node_pool=region.node_pool or job.node_pool or DEFAULT_NODE_POOL,
        meta={**job.meta, **region.meta},
        task_groups=tuple(_counted(group, region) for group in job.task_groups),
    )


def jobs_by_region(job: Job) -> dict[str, Job]:
    """Every region's job, in the order of the list."""
    return {name: job_for_region(job, name) for name in region_names(job)}


def left_regions(before: Job | None, after: Job) -> tuple[str, ...]:
    """Regions that the job was in and is not any more: it is stopped there once the new rollout has started."""
    now = set(region_names(after))
    return tuple(name for name in (region_names(before) if before is not None else ()) if name not in now)


def strategy_of(job: Job) -> MultiregionStrategy:
    """The job's strategy with everything said that it leaves open."""
    strategy = _block(job).strategy or MultiregionStrategy()
    return replace(
        strategy,
        max_parallel=strategy.max_parallel if has_deployments(job) else 0,
        on_unreachable=strategy.on_unreachable or "fail",
        region_deadline_s=strategy.region_deadline_s or _progress_deadline_s(job) + SILENCE_S,
    )


def has_deployments(job: Job) -> bool:
    """Whether regions can wait for one another: one-shot jobs have no deployments and start everywhere at once."""
    return job.type not in (JobType.BATCH, JobType.SYSBATCH)


def multiregion_problems(job: Job, known_regions: Collection[str], *, max_count: int = MAX_COUNT) -> list[Problem]:
    """What is wrong with the block beyond what `job_problems` finds, given the regions that gossip knows."""
    if job.multiregion is None:
        return []
    return [
        *_strategy_problems(job.multiregion.strategy or MultiregionStrategy()),
        *_adoption_problems(job.multiregion),
        *(
            problem
            for index, region in enumerate(job.multiregion.regions)
            for problem in _region_problems(job, index, region, known_regions, max_count)
        ),
    ]


def _block(job: Job) -> Multiregion:
    return job.multiregion or Multiregion()


def _counted(group: TaskGroup, region: MultiregionRegion) -> TaskGroup:
    """A count that the group gives itself stands; 0 leaves it to the region."""
    return group if group.count else replace(group, count=region.count)


def _progress_deadline_s(job: Job) -> float:
    updates = [group.update for group in job.task_groups if group.update is not None]
    return max((update.progress_deadline_s for update in updates), default=PROGRESS_DEADLINE_S)


def _strategy_problems(strategy: MultiregionStrategy) -> Iterator[Problem]:
    path = "Multiregion.Strategy"
    if strategy.max_parallel < 0:
        yield Problem(
            f"{path}.MaxParallel",
            f"multiregion max_parallel can't be negative: {strategy.max_parallel}",
            hint="0 starts all regions at once",
        )
    if strategy.on_unreachable not in ON_UNREACHABLE:
        words = [word for word in ON_UNREACHABLE if word]
        yield Problem(
            f"{path}.OnUnreachable",
            f'unknown on_unreachable "{strategy.on_unreachable}"',
            hint=one_of(strategy.on_unreachable, words),
        )
    if strategy.region_deadline_s < 0:
        yield Problem(f"{path}.RegionDeadline", "multiregion region_deadline can't be negative")
    if strategy.bake_time_s < 0:
        yield Problem(f"{path}.BakeTime", "multiregion bake_time can't be negative")
    if strategy.bake_time_s > 0 and strategy.max_parallel == 0:
        yield Problem(
            f"{path}.BakeTime",
            "multiregion bake_time does nothing while all regions run at once",
            hint="set max_parallel, say to 1, or leave bake_time out",
        )


def _adoption_problems(block: Multiregion) -> Iterator[Problem]:
    path = "Multiregion.Strategy.AdoptAfter"
    adopt_after_s = block.strategy.adopt_after_s if block.strategy is not None else 0.0
    if adopt_after_s < 0:
        yield Problem(path, "multiregion adopt_after can't be negative", hint="0 leaves it to a person")
    elif 0 < adopt_after_s < ADOPT_AFTER_MIN_S:
        yield Problem(
            path,
            f"multiregion adopt_after is {adopt_after_s:g} s, less than {ADOPT_AFTER_MIN_S:g} s",
            hint="a region that elects a leader is silent for some seconds, and is not lost",
        )
    if adopt_after_s > 0 and len(block.regions) < ADOPTERS_MIN:
        yield Problem(
            path,
            f"multiregion adopt_after needs {ADOPTERS_MIN} listed regions, and there are {len(block.regions)}",
            hint="without the lost one there is no majority of fewer, so leave it out: a person can have it adopted",
        )


def _region_problems(
    job: Job, index: int, region: MultiregionRegion, known_regions: Collection[str], max_count: int
) -> Iterator[Problem]:
    path = f"Multiregion.Regions[{index}]"
    if region.name and region.name not in known_regions:
        yield Problem(
            f"{path}.Name",
            f'multiregion names region "{region.name}", which no server here has heard of',
            hint=one_of(region.name, known_regions),
        )
    if region.count < 0:
        yield Problem(f"{path}.Count", f'region "{region.name}": count can\'t be negative: {region.count}')
        return
    if any(not datacenter for datacenter in region.datacenters):
        yield Problem(f"{path}.Datacenters", f'region "{region.name}": a datacenter has no name')
    counts = [group.count or region.count for group in job.task_groups]
    if sum(counts) > max_count:
        yield Problem(
            f"{path}.Count", f'region "{region.name}" would run {sum(counts)} allocations, more than {max_count}'
        )
    if job.type in (JobType.SYSTEM, JobType.SYSBATCH) and any(count > 1 for count in counts):
        yield Problem(
            f"{path}.Count", f'region "{region.name}": a {job.type} job runs once per node, so its count is 1 at most'
        )
