"""`operator gossip keyring ...`: the keys that gossip among servers is sealed with."""

from __future__ import annotations

from typing import Final

from fedsched.model.record import to_api
from fedsched.model.units import format_duration, parse_duration
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.gossip import (
    OPERATOR_KEYRING_CHANGE,
    OPERATOR_KEYRING_LIST,
    OPERATOR_KEYRING_ROTATE,
    KeyringChangeRequest,
    KeyringReply,
    KeyringRotateRequest,
)
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, JSON, OK, TEMPLATE, Verbs
from fedsched.verbs.view import columns

VERBS = Verbs()
PATIENCE_S: Final = 60.0
"""A step waits a few seconds for each member that does not answer, and a rotation is several steps."""
KEY_BYTES: Final = 32
KEY: Final = Argument("key", "the key in base64, or - to read it from standard input")
KNOWN: Final = Argument("key", "its fingerprint as list shows it, or the key in base64, or - for standard input")


@VERBS.verb(
    "operator gossip keyring generate",
    "make a gossip key",
    doc="Prints 32 random bytes in base64, for server.encrypt or for install. Talks to nobody.",
    is_remote=False,
)
def generate(terminal: Terminal, given: Given) -> int:
    import base64
    import os

    terminal.say(base64.b64encode(os.urandom(KEY_BYTES)).decode())
    return OK


@VERBS.verb(
    "operator gossip keyring list",
    "show the gossip keys by their fingerprints, and how many members have each",
    doc="Asks every server that is up, of all regions, for the keys that it has. Keys themselves are never shown."
    " Exits 1 if a member did not answer.",
    flags=(JSON, TEMPLATE),
)
def list_keys(terminal: Terminal, given: Given) -> int:
    return _shown(terminal, given, terminal.client.call(OPERATOR_KEYRING_LIST, Empty(), patience_s=PATIENCE_S))


@VERBS.verb(
    "operator gossip keyring install",
    "give a key to every member, so that it can read what is sealed with it",
    doc="The first step of a rotation by hand. Exits 1 if a member did not take it: the key must not be used before all"
    " have it.",
    flags=(JSON, TEMPLATE),
    arguments=(KEY,),
)
def install(terminal: Terminal, given: Given) -> int:
    return _change(terminal, given, "install")


@VERBS.verb(
    "operator gossip keyring use",
    "have every member seal with a key",
    doc="The second step of a rotation by hand. Refused while a member that is up does not have the key.",
    flags=(JSON, TEMPLATE),
    arguments=(KNOWN,),
)
def use(terminal: Terminal, given: Given) -> int:
    return _change(terminal, given, "use")


@VERBS.verb(
    "operator gossip keyring remove",
    "take a key from every member",
    doc="The last step of a rotation by hand. Refused for a key that a member still seals with.",
    flags=(JSON, TEMPLATE),
    arguments=(KNOWN,),
)
def remove(terminal: Terminal, given: Given) -> int:
    return _change(terminal, given, "remove")


@VERBS.verb(
    "operator gossip keyring rotate",
    "replace the gossip key on all servers of all regions",
    doc="Makes a key, gives it to every member that is up, has all of them seal with it, and removes the former keys"
    " after the grace. Members that come back meanwhile are given the new key; later ones need it in server.encrypt."
    " If a member does not answer, the rotation stops and says where; the steps can be finished by hand. Should the"
    " server that was asked end before the grace is over, the former keys stay until somebody removes them.",
    flags=(
        Flag("grace", "how long the former keys stay readable; 1h unless said, 0s removes them now", value="duration"),
        Flag("key", "use this key instead of making one; - reads it from standard input", value="base64"),
        JSON,
        TEMPLATE,
    ),
)
def rotate(terminal: Terminal, given: Given) -> int:
    grace_s = parse_duration(given["grace"] or "1h")
    request = KeyringRotateRequest(key=_read(terminal, given["key"] or ""), grace_s=grace_s)
    return _shown(terminal, given, terminal.client.call(OPERATOR_KEYRING_ROTATE, request, patience_s=PATIENCE_S))


def _change(terminal: Terminal, given: Given, operation: str) -> int:
    request = KeyringChangeRequest(operation=operation, key=_read(terminal, given["key"]))
    return _shown(terminal, given, terminal.client.call(OPERATOR_KEYRING_CHANGE, request, patience_s=PATIENCE_S))


def _read(terminal: Terminal, text: str) -> str:
    if text != "-":
        return text
    line: str = terminal.stdin.readline().strip()
    if not line:
        raise BadUsage("no key on standard input", hint="`fedsched operator gossip keyring generate` makes one")
    return line


def _shown(terminal: Terminal, given: Given, reply: KeyringReply) -> int:
    failures = {one.name: one.error for step in reply.steps for one in step.failures}
    code = FAILED if failures else OK
    if terminal.formatted(given, lambda: to_api(reply)):
        return code
    for step in reply.steps:
        if step.operation != "list":
            terminal.say(f"{step.operation} {step.fingerprint}: {step.answered} of {step.asked} members")
    rows = [
        (one.fingerprint, f"{one.held_by}/{reply.members}", f"{one.primary_of}/{reply.members}") for one in reply.keys
    ]
    terminal.write(columns(("Fingerprint", "Held By", "Sealing"), rows))
    if reply.removal_in_s is not None:
        terminal.say(f"Former keys will be removed in {format_duration(reply.removal_in_s)}")
    for name, why in sorted(failures.items()):
        terminal.warn(f"{name}: {why}")
    return code
