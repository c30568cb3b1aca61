"""The cgroups of one task: made before it starts, removed when it has ended.

Light: this is part of every supervisor.
"""

from __future__ import annotations

import os

from fedsched.drivers.supervisor import processes


def oom_kills(files: list[str]) -> int:
    """How often the kernel has killed in them for want of memory."""
    found = 0
    for path in files:
        for line in processes.read_small(path).splitlines():
            if line.startswith(b"oom_kill "):
                found += int(line.split()[1])
    return found


def try_value(path: str, value: str) -> bool:
    """Write one of their files; false if it is not there or does not take that."""
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(fd, value.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def set_value(path: str, value: str) -> None:
    """Write one of their files. Raises `OSError` that says what was written."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (writing {value})", path) from None
    finally:
        os.close(fd)


def make_group(path: str) -> bool:
    """Make it; false if it may have been there."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    except FileNotFoundError:
        os.makedirs(path, exist_ok=True)
        return False
    return True


def remove_group(path: str) -> None:
    """Remove it, as far as nobody is in it any more."""
    try:
        os.rmdir(path)
        return
    except FileNotFoundError:
        return
    except OSError:
        pass  # the task made groups of its own, or somebody is still in it
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            continue  # somebody is still in it: the agent sweeps what is left over
