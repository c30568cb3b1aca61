"""Choosing nodes as the page on scheduling says it, in plain Python over whole records: slow, and nobody else's code.

It knows what `any_case` of `test_whole_choice` uses: constraints on text, affinities, spread blocks, static ports and
distinct hosts. Ties are nobody's business here: of several best nodes any will do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fedsched.model.constraint import Spread
from fedsched.model.job import Job
from fedsched.model.node import Node


class PlainHost:
    """A node and what is on it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cpu = node.node_resources.cpu.cpu_shares
        self.memory = node.node_resources.memory.memory_mb
        self.disk = node.node_resources.disk.disk_mb
        self.ports: set[int] = set()
        self.mine = 0
        """Allocations of the job in question."""

    def value(self, target: str) -> str | None:
        known = {"${node.datacenter}": self.node.datacenter, "${node.class}": self.node.node_class}
        if target.startswith("${meta."):
            return self.node.meta.get(target[7:-1])
        return known[target]


class PlainGreedy:
    """One group of one job being placed."""

    def __init__(self, job: Job, hosts: list[PlainHost]) -> None:
        self.job = job
        self.group = job.task_groups[0]
        self.hosts = hosts
        self.need = (
            sum(task.resources.cpu for task in self.group.tasks),
            sum(task.resources.memory_mb for task in self.group.tasks),
            self.group.ephemeral_disk.size_mb,
        )
        self.ports = {port.value for network in self.group.networks for port in network.reserved_ports}
        self.wishes = (*job.affinities, *self.group.affinities)
        self.spreads = (*job.spreads, *self.group.spreads)

    def place(self, host: PlainHost) -> None:
        host.cpu, host.memory, host.disk = (
            left - asked for left, asked in zip((host.cpu, host.memory, host.disk), self.need, strict=True)
        )
        host.ports |= self.ports
        host.mine += 1

    def fits(self, host: PlainHost) -> bool:
        rules = (*self.job.constraints, *self.group.constraints)
        for rule in rules:
            if rule.operand == "distinct_hosts":
                if host.mine:
                    return False
            elif (host.value(rule.l_target) == rule.r_target) != (rule.operand == "="):
                return False
        left = (host.cpu, host.memory, host.disk)
        return not host.ports & self.ports and all(asked <= had for asked, had in zip(self.need, left, strict=True))

    def score(self, host: PlainHost) -> float:
        has = host.node.node_resources
        free_cpu = (host.cpu - self.need[0]) / has.cpu.cpu_shares
        free_memory = (host.memory - self.need[1]) / has.memory.memory_mb
        entries = [min(18.0, max(0.0, 20 - 10**free_cpu - 10**free_memory)) / 18]
        if host.mine:
            entries.append(-(host.mine + 1) / self.group.count)
        if self.wishes:
            matched = (wish.weight for wish in self.wishes if host.value(wish.l_target) == wish.r_target)
            entries.append(sum(matched) / sum(abs(wish.weight) for wish in self.wishes))
        if self.spreads:
            boost = sum(self._boost(spread, host) for spread in self.spreads)
            entries += [boost] if abs(boost) > 1e-9 else []  # blocks may cancel each other out
        return sum(entries) / len(entries)

    def _boost(self, spread: Spread, host: PlainHost) -> float:
        here = host.value(spread.attribute)
        if here is None:
            return -1.0  # also before anything of the group is placed
        if not spread.spread_target:
            return self._even(self._used(spread), here)
        targets = {target.value: target.percent / 100 * self.group.count for target in spread.spread_target}
        used = Counter[str]()
        for value, count in self._used(spread).items():
            used[value if value in targets else "*"] += count
        rest = self.group.count - sum(targets.values())
        if here not in targets and rest <= 0:
            return -1.0
        wanted, key = (targets[here], here) if here in targets else (rest, "*")
        share = spread.weight / sum(one.weight for one in self.spreads)
        return (wanted - used[key] - 1) / wanted * share

    def _even(self, used: Counter[str], here: str) -> float:
        if not used:
            return 0.0
        least, most = min(used.values()), max(used.values())
        if used[here] != least:
            return (least - used[here]) / least
        return -1.0 if least == most else (most - least) / least

    def _used(self, spread: Spread) -> Counter[str]:
        values = ((host.value(spread.attribute), host.mine) for host in self.hosts if host.mine)
        return Counter(_repeated(values))


def _repeated(values: Iterable[tuple[str | None, int]]) -> Iterable[str]:
    for value, count in values:
        if value is not None:
            yield from [value] * count
