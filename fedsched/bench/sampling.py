"""The baseline for placement: what schedulers of this kind usually do, in plain Python.

Nodes are shuffled once per evaluation and walked round. For each placement the walk goes on until a few nodes were
found that are feasible and have room (2, or the logarithm of the fleet); the best of those is taken. Feasibility is
remembered per class, as it is there. Nodes that score 0 or less are put aside, three at most.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

from fedsched.scheduler.fleet_columns import FleetColumns
from fedsched.scheduler.fleet_usage import Usage

SET_ASIDE_MAX: Final = 3


def candidates_for(nodes: int) -> int:
    """How many nodes a service compares."""
    return max(2, math.ceil(math.log2(nodes))) if nodes > 1 else 2


class Sampler:
    """A fleet as lists of numbers, and placement by sampling on it."""

    def __init__(self, fleet: FleetColumns, classes: Sequence[int]) -> None:
        here = [slot for slot in range(fleet.size) if fleet.present[slot]]
        self.slots = here
        self.classes = list(classes)
        self.cap_cpu, self.cap_memory = fleet.cap_cpu.tolist(), fleet.cap_memory.tolist()
        self.cap_disk = fleet.cap_disk.tolist()
        self.cpu, self.memory, self.disk = (
            fleet.occupied_cpu.tolist(),
            fleet.occupied_memory.tolist(),
            fleet.occupied_disk.tolist(),
        )

    def place(self, allowed: frozenset[int], ask: Usage, count: int, chance: random.Random, limit: int) -> list[int]:
        """Place so many of one group; shorter if there was no room."""
        order = self.slots[:]
        chance.shuffle(order)
        cursor, size = 0, len(order)
        there: dict[int, int] = {}
        placed: list[int] = []
        feasible: dict[int, bool] = {}
        cap_cpu, cap_memory, cap_disk, classes = self.cap_cpu, self.cap_memory, self.cap_disk, self.classes
        cpu, memory, disk = self.cpu, self.memory, self.disk
        ask_cpu, ask_memory, ask_disk = ask
        for _ in range(count):
            best, best_score, found = -1, -math.inf, 0
            low: list[tuple[float, int]] = []
            for _ in range(size):
                slot = order[cursor]
                cursor += 1
                if cursor == size:
                    cursor = 0
                kind = classes[slot]
                fine = feasible.get(kind)
                if fine is None:
                    fine = feasible[kind] = kind in allowed
                if not fine:
                    continue
                used_cpu, used_memory = cpu[slot] + ask_cpu, memory[slot] + ask_memory
                if used_cpu > cap_cpu[slot] or used_memory > cap_memory[slot] or disk[slot] + ask_disk > cap_disk[slot]:
                    continue
                total = 10.0 ** (1.0 - used_cpu / cap_cpu[slot]) + 10.0 ** (1.0 - used_memory / cap_memory[slot])
                score = (20.0 - total) / 18.0
                others = there.get(slot, 0)
                if others:
                    score = (score - (others + 1) / count) / 2
                if score <= 0 and len(low) < SET_ASIDE_MAX:
                    low.append((score, slot))
                    continue
                if score > best_score:
                    best, best_score = slot, score
                found += 1
                if found == limit:
                    break
            if found < limit:
                for score, slot in low[: limit - found]:
                    if score > best_score:
                        best, best_score = slot, score
            if best < 0:
                break
            placed.append(best)
            there[best] = there.get(best, 0) + 1
            cpu[best] += ask_cpu
            memory[best] += ask_memory
            disk[best] += ask_disk
        return placed
