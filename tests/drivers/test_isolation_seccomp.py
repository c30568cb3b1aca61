"""The filter of system calls: its numbers against the kernel's own headers, its verdicts by running it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.drivers.driver import DriverError
from fedsched.drivers.isolation import seccomp
from fedsched.drivers.isolation.capabilities import DEFAULT, KERNEL_ORDER
from tests.drivers.bpf import verdict

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
MACHINES = sorted(seccomp.NUMBERS)
USUAL = {"x86_64": {"read": 0, "openat": 257, "execve": 59, "futex": 202}, "aarch64": {"read": 63, "execve": 221}}
LATER_THAN_HEADERS = {"open_tree_attr"}


def decide(machine: str, name: str, *arguments: int, held: frozenset[str] = DEFAULT) -> int:
    program = seccomp.build(held, machine)
    return verdict(program, seccomp.NUMBERS[machine][name], seccomp.ARCHITECTURE[machine], *arguments)


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"no kernel headers at {HEADERS[machine]}")
    defined = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text()))

    ours = {name: number for name, number in seccomp.NUMBERS[machine].items() if name not in LATER_THAN_HEADERS}

    assert ours == {name: int(defined[name]) for name in ours}
    named = seccomp.refused(frozenset()) | {"clone", "clone3", "ioctl", "socket", "personality"}
    assert {name for name in named if name in defined} <= ours.keys()


@pytest.mark.parametrize("machine", MACHINES)
def test_dangerous_calls_are_refused_and_usual_ones_are_not(machine: str) -> None:
    program = seccomp.build(DEFAULT, machine)
    architecture = seccomp.ARCHITECTURE[machine]

    for name in ("mount", "unshare", "setns", "bpf", "keyctl", "kexec_load", "init_module", "io_uring_setup"):
        assert decide(machine, name) == seccomp.EPERM, name
    for number in USUAL[machine].values():
        assert verdict(program, number, architecture) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("other", [0x40000003, 0xC000003E, 0xC00000B7, 0x40000028, 0])
def test_calls_of_a_foreign_architecture_end_the_program(machine: str, other: int) -> None:
    expected = seccomp.ALLOW if other == seccomp.ARCHITECTURE[machine] else seccomp.KILL

    assert verdict(seccomp.build(DEFAULT, machine), 1, other) == expected


def test_x32_calls_end_the_program() -> None:
    program = seccomp.build(DEFAULT, "x86_64")

    assert verdict(program, 0x40000000 | 165, seccomp.ARCHITECTURE["x86_64"]) == seccomp.KILL


@given(flags=st.integers(0, 2**64 - 1), machine=st.sampled_from(MACHINES))
def test_clone_is_refused_exactly_for_new_namespaces(flags: int, machine: str) -> None:
    found = decide(machine, "clone", flags)

    assert found == (seccomp.EPERM if flags & 0x7E020000 else seccomp.ALLOW)


@pytest.mark.parametrize("machine", MACHINES)
def test_clone3_is_unknown_so_that_libc_uses_clone(machine: str) -> None:
    assert decide(machine, "clone3") == seccomp.ENOSYS
    assert decide(machine, "clone3", held=DEFAULT | {"sys_admin"}) == seccomp.ALLOW
    assert decide(machine, "clone", 0x10000000, held=DEFAULT | {"sys_admin"}) == seccomp.ALLOW


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("ioctl", (0, 0x5412), seccomp.EPERM),
        ("ioctl", (0, 0xFFFF_0000_5412), seccomp.EPERM),
        ("ioctl", (0, 0x541C), seccomp.EPERM),
        ("ioctl", (0, 0x5413), seccomp.ALLOW),
        ("socket", (40,), seccomp.EPERM),
        ("socket", (38,), seccomp.EPERM),
        ("socket", (1,), seccomp.ALLOW),
        ("socket", (2,), seccomp.ALLOW),
        ("personality", (0,), seccomp.ALLOW),
        ("personality", (0xFFFFFFFF,), seccomp.ALLOW),
        ("personality", (0x20008,), seccomp.ALLOW),
        ("personality", (0x0040000,), seccomp.EPERM),
    ],
)
@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_where_only_some_uses_are_dangerous(
    machine: str, name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert decide(machine, name, *arguments) == expected


@given(held=st.sets(st.sampled_from(KERNEL_ORDER)), machine=st.sampled_from(MACHINES))
def test_a_capability_frees_its_own_calls_and_no_others(held: set[str], machine: str) -> None:
    program = seccomp.build(held, machine)
    architecture = seccomp.ARCHITECTURE[machine]

    for needed, names in seccomp.REFUSED_WITHOUT.items():
        for name in names & seccomp.NUMBERS[machine].keys():
            found = verdict(program, seccomp.NUMBERS[machine][name], architecture)
            assert found == (seccomp.ALLOW if needed in held else seccomp.EPERM), name
    for name in seccomp.REFUSED & seccomp.NUMBERS[machine].keys():
        assert verdict(program, seccomp.NUMBERS[machine][name], architecture) == seccomp.EPERM


def test_a_machine_without_numbers_is_refused_by_name() -> None:
    with pytest.raises(DriverError, match="riscv64"):
        seccomp.build(DEFAULT, "riscv64")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_fits_the_kernels_limit(machine: str) -> None:
    assert len(seccomp.build(frozenset(), machine)) // 8 < 4096
