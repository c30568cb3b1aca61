"""Who a task runs as: names looked up on the host, and what operators refuse."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fedsched.drivers.driver import DriverError

DEFAULT_USER: Final = "nobody"
DENIED_USERS: Final = ("root", "Administrator")
"""Who no isolated task runs as, unless the operator clears the list."""
HIGHEST_ID: Final = 2**32 - 2


@dataclass(frozen=True, slots=True)
class TaskUser:
    name: str
    uid: int
    gid: int
    home: str = "/"


@dataclass(frozen=True, slots=True)
class DeniedUsers:
    """What operators refuse: names, and ranges of numbers (both ends included)."""

    names: tuple[str, ...] = DENIED_USERS
    uids: tuple[tuple[int, int], ...] = ()
    gids: tuple[tuple[int, int], ...] = ()

    def check(self, user: TaskUser) -> None:
        """Raise for somebody who is refused, by whatever name or number they were asked for."""
        names = {name.lower() for name in self.names}
        if user.name.lower() in names or (user.uid == 0 and "root" in names):
            raise DriverError(
                f"tasks may not run as user {user.name} here",
                hint="name another in the task's `user`, or none for nobody",
            )
        for what, number, ranges in (("uid", user.uid, self.uids), ("gid", user.gid, self.gids)):
            for low, high in ranges:
                if low <= number <= high:
                    raise DriverError(
                        f"tasks may not run as user {user.name}: {what} {number} is refused here",
                        hint=f"denied_host_{what}s holds {low}-{high}",
                    )


def find_user(written: str, default: str = DEFAULT_USER) -> TaskUser:
    """Look up `name`, `number`, `name:group` or `number:number` on this host."""
    name, _, group = (written or default).partition(":")
    found = _user(name)
    return found if not group else TaskUser(found.name, found.uid, _group(group), found.home)


def is_known_id(number: int) -> bool:
    """Whether this host has a user or a group of that number."""
    for look_up in (pwd.getpwuid, grp.getgrgid):
        try:
            look_up(number)
        except KeyError:
            continue
        return True
    return False


def parse_ranges(written: Iterable[str] | str) -> tuple[tuple[int, int], ...]:
    """Read `0,100-200` (or a list of such) as operators write it."""
    ranges: list[tuple[int, int]] = []
    for part in written.split(",") if isinstance(written, str) else [p for one in written for p in one.split(",")]:
        if not part.strip():
            continue
        low, dash, high = part.strip().partition("-")
        first, last = _number(low, part), _number(high, part) if dash else _number(low, part)
        if last < first:
            raise DriverError(f"{part!r:.40} is not a range of ids", hint="the lower number comes first: 100-200")
        ranges.append((first, last))
    return tuple(ranges)


def _user(name: str) -> TaskUser:
    try:
        entry = pwd.getpwuid(_id(name)) if name.isascii() and name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        if name.isascii() and name.isdigit():
            return TaskUser(name, _id(name), _id(name))
        raise DriverError(f"no user {name!r:.60} on this host", hint="users are looked up on the client") from None
    except ValueError as error:
        raise DriverError(f"{name!r:.60} is no user's name: {error}") from error
    return TaskUser(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def _group(name: str) -> int:
    if name.isascii() and name.isdigit():
        return _id(name)
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise DriverError(f"no group {name!r:.60} on this host", hint="groups are looked up on the client") from None


def _id(text: str) -> int:
    if len(text) > 10 or int(text) > HIGHEST_ID:
        raise DriverError(f"{text:.40} is no user or group id", hint=f"the highest is {HIGHEST_ID}")
    return int(text)


def _number(text: str, part: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise DriverError(f"{part!r:.40} is not a range of ids", hint="write 0 or 100-200, separated by commas")
    return _id(text.strip())
