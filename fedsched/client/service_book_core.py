"""What this client wants to be registered, what servers are known to have, and what is to be sent. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fedsched.model.service import ServiceRegistration

BATCH: Final = 500
"""Registrations in one call; more wait for the next."""


class ServiceBookCore:
    """The registrations of one client. An owner is the part of ids that its services share."""

    def __init__(self) -> None:
        self._wanted: dict[str, dict[str, ServiceRegistration]] = {}
        """By owner and id."""
        self._said: dict[str, ServiceRegistration] = {}
        """As servers confirmed them."""
        self._refused: dict[str, ServiceRegistration] = {}
        """Servers do not take these: their allocation does not run, as far as they know."""

    def want(self, owner: str, registrations: Iterable[ServiceRegistration]) -> None:
        """From now on these are all of an owner's."""
        self._wanted[owner] = {one.id: one for one in registrations}
        for identity in [known for known in self._refused if known.startswith(owner)]:
            del self._refused[identity]

    def drop(self, owner: str) -> None:
        """An owner offers nothing any more, and nothing is known of it."""
        self._wanted.pop(owner, None)

    def to_register(self) -> list[ServiceRegistration]:
        """What servers have not heard of, or heard otherwise."""
        wanted = (one for services in self._wanted.values() for one in services.values())
        news = (one for one in wanted if self._said.get(one.id) != one and self._refused.get(one.id) != one)
        return [one for one, _ in zip(news, range(BATCH), strict=False)]

    def to_remove(self) -> list[str]:
        """What servers have and nobody wants."""
        wanted = {identity for services in self._wanted.values() for identity in services}
        return [identity for identity in self._said if identity not in wanted][:BATCH]

    def registered(self, sent: Iterable[ServiceRegistration], passed_over: Iterable[str]) -> None:
        """Servers answered."""
        refused = set(passed_over)
        for one in sent:
            if one.id in refused:
                self._refused[one.id] = one
                self._said.pop(one.id, None)
            else:
                self._said[one.id] = one

    def removed(self, sent: Iterable[str]) -> None:
        for identity in sent:
            self._said.pop(identity, None)

    def found(self, registrations: Iterable[ServiceRegistration]) -> None:
        """What servers have of this node. What they lost, or took out, is to be said again; of those that nobody here
        wants only those of a known owner are ours to judge: the others may belong to what is still being restored."""
        there = {one.id: one for one in registrations}
        self._refused.clear()
        owners = tuple(self._wanted)
        self._said = {
            identity: one
            for identity, one in there.items()
            if identity in self._said or (owners and identity.startswith(owners))
        }

    @property
    def is_settled(self) -> bool:
        return not self.to_register() and not self.to_remove()

    @property
    def is_empty(self) -> bool:
        """Nothing wanted and nothing left behind."""
        return not any(self._wanted.values()) and not self._said
