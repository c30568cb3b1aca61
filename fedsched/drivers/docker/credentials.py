"""Who to be when an image is pulled: the task's own word, else the operator's file, else a helper program.

What is found is never logged, nor part of a message.
"""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from fedsched.drivers.docker.config import DockerSettings
from fedsched.drivers.docker.image_reference import DEFAULT_REGISTRY, ImageReference
from fedsched.drivers.docker.records import RegistryAuth
from fedsched.drivers.docker.task_config import TaskSettings
from fedsched.drivers.driver import DriverError

FILE_BYTES_MAX: Final = 1 << 20
HELPER_S: Final = 30.0
_TOKEN_USER: Final = "<token>"
"""With this name a helper says that the password is an identity token."""


async def registry_auth(image: ImageReference, task: TaskSettings, operator: DockerSettings) -> RegistryAuth | None:
    """Credentials for an image; None if there are none to be used."""
    if task.auth is not None:
        return task.auth
    try:
        return await _operators_auth(image, operator)
    except DriverError:
        if task.values.flag("auth_soft_fail"):
            return None
        raise


async def _operators_auth(image: ImageReference, operator: DockerSettings) -> RegistryAuth | None:
    if operator.auth_config:
        found = await _from_file(image, operator.auth_config)
        if found is not None:
            return found
    if operator.auth_helper:
        return await _from_helper(image.registry, operator.auth_helper)
    return None


async def _from_file(image: ImageReference, path: str) -> RegistryAuth | None:
    try:
        data = await trio.to_thread.run_sync(_read, path)
        settings = msgspec.json.decode(data, type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DriverError(f"auth.config {path} cannot be read: {type(error).__name__}") from error
    helper = _mapping(settings.get("credHelpers")).get(image.registry) or settings.get("credsStore")
    if isinstance(helper, str) and helper.replace("-", "").replace("_", "").isalnum():
        return await _from_helper(image.registry, helper)
    for name, entry in _mapping(settings.get("auths")).items():
        if _host(name) == _host(image.registry):
            return _entry_auth(_mapping(entry), name, path)
    return None


def _read(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(FILE_BYTES_MAX)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _host(address: str) -> str:
    host = address.removeprefix("https://").removeprefix("http://").split("/", 1)[0]
    return _host(DEFAULT_REGISTRY) if host in ("docker.io", "registry-1.docker.io") else host


def _entry_auth(entry: dict[str, Any], server: str, path: str) -> RegistryAuth | None:
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return RegistryAuth(identitytoken=token, serveraddress=server)
    both = entry.get("auth")
    if not isinstance(both, str) or not both:
        return None
    try:
        username, colon, password = base64.b64decode(both, validate=True).decode().partition(":")
    except ValueError:
        colon = ""
    if not colon:
        raise DriverError(f"auth.config {path} has no proper credentials for {server:.80}")
    return RegistryAuth(username=username, password=password, serveraddress=server)


async def _from_helper(server: str, helper: str) -> RegistryAuth | None:
    program = f"docker-credential-{helper}"
    try:
        with trio.fail_after(HELPER_S):
            ended = await trio.run_process(
                [program, "get"],
                stdin=server.encode(),
                capture_stdout=True,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        if ended.returncode:
            return None  # how helpers say that they know nothing about a server
        found = msgspec.json.decode(ended.stdout[:FILE_BYTES_MAX], type=dict[str, Any])
    except trio.TooSlowError:
        raise DriverError(f"{program} gave no credentials within {HELPER_S:g} s", is_recoverable=True) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DriverError(f"{program} gave no credentials: {type(error).__name__}") from error
    username, secret = str(found.get("Username", "")), str(found.get("Secret", ""))
    if username == _TOKEN_USER:
        return RegistryAuth(identitytoken=secret, serveraddress=server)
    return RegistryAuth(username=username, password=secret, serveraddress=server)
