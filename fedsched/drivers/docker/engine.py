"""The Docker Engine API, as far as the driver needs it: typed calls, each with its own patience.

Speaks the newest version that both sides know, found by asking once. Answers are checked where they are read: a field
of the wrong kind is the engine's fault and says so, never a traceback.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import trio

from fedsched.drivers.docker.faults import EngineFault, EngineRefused, Fault
from fedsched.drivers.docker.records import (
    ContainerDetails,
    ContainerListed,
    EngineInfo,
    EngineVersion,
    ExecDetails,
    ImageDetails,
    NetworkDetails,
    RegistryAuth,
    StatsSample,
)
from fedsched.drivers.docker.streams import JsonLines
from fedsched.drivers.docker.transport import Answer, Headers, Transport, refused

API_VERSION_MAX: Final = (1, 47)
"""The newest version these calls were written against."""

ANSWER_S: Final = 30.0
"""For calls that only look something up or write it down."""
WORK_S: Final = 120.0
"""For calls during which an engine mounts, unpacks or signals; Docker holds one lock per container meanwhile."""
STOP_GRACE_S: Final = 15.0
"""On top of a stop's own timeout: the engine kills, then waits for the process to vanish."""

_JSON: Headers = (("Content-Type", "application/json"),)
T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*\Z")


class Engine:
    """One engine behind one endpoint. Holds no connection between calls."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._prefix = ""
        self.is_podman = False
        """Known after the first call."""

    @property
    def address(self) -> str:
        return self._transport.endpoint.address

    async def version(self) -> EngineVersion:
        """Who answers; also settles on the version of all later calls."""
        found = await self._json("GET", "/version", EngineVersion, what="asking for the version", is_plain=True)
        self._prefix = f"/v{_common_version(found)}"
        self.is_podman = found.is_podman
        return found

    async def info(self) -> EngineInfo:
        return await self._json("GET", "/info", EngineInfo, what="asking what the engine can do")

    async def network(self, name: str) -> NetworkDetails:
        return await self._json("GET", f"/networks/{_part(name)}", NetworkDetails, what=f"looking up network {name}")

    # images

    async def image(self, reference: str) -> ImageDetails | None:
        """What is known about an image; None if it is not here."""
        target = f"/images/{quote(reference, safe='/:@')}/json"
        try:
            return await self._json("GET", target, ImageDetails, what=f"looking up image {reference}")
        except EngineRefused as error:
            if error.status == 404:
                return None
            raise

    def pull(
        self, repository: str, tag: str, auth: RegistryAuth | None
    ) -> AbstractAsyncContextManager[AsyncIterator[Mapping[str, Any]]]:
        """Progress of a pull, line by line; ends when the image is here. The caller watches the clock."""
        query = urlencode({"fromImage": repository, "tag": tag})
        headers = (("X-Registry-Auth", encoded_auth(auth)),) if auth is not None else ()
        return self._progress("POST", f"/images/create?{query}", headers=headers, what=f"pulling {repository}:{tag}")

    def load(self, archive: AsyncIterable[bytes]) -> AbstractAsyncContextManager[AsyncIterator[Mapping[str, Any]]]:
        """Load an archive of images; lines as in a pull."""
        headers = (("Content-Type", "application/x-tar"),)
        return self._progress("POST", "/images/load?quiet=1", headers=headers, upload=archive, what="loading an image")

    async def remove_image(self, reference: str) -> None:
        target = f"/images/{quote(reference, safe='/:@')}"
        await self._done("DELETE", target, what=f"removing image {reference}", limit_s=WORK_S)

    # containers

    async def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Make a container and give its id; 409 if the name is taken."""
        target = f"/containers/create?{urlencode({'name': name})}"
        made = await self._json("POST", target, dict[str, Any], body=body, what=f"creating {name}", limit_s=WORK_S)
        found = made.get("Id")
        if not isinstance(found, str) or not _ID.match(found):
            raise EngineFault(Fault.GARBLED, f"the engine created {name} without giving a proper id: {found!r:.80}")
        return found

    async def start(self, container: str) -> None:
        """Start it; no effect if it runs."""
        target = f"/containers/{_part(container)}/start"
        await self._done("POST", target, what=f"starting {container:.12}", limit_s=WORK_S, also=(304,))

    async def inspect(self, container: str) -> ContainerDetails:
        target = f"/containers/{_part(container)}/json"
        return await self._json("GET", target, ContainerDetails, what=f"inspecting {container:.80}")

    async def containers(self, labels: list[str]) -> list[ContainerListed]:
        """All with these labels, running or not."""
        query = urlencode({"all": "1", "filters": msgspec.json.encode({"label": labels}).decode()})
        return await self._json("GET", f"/containers/json?{query}", list[ContainerListed], what="listing containers")

    async def wait(self, container: str) -> None:
        """Until it does not run any more, as long as that takes. Its exit code is in `inspect`."""
        target = f"/containers/{_part(container)}/wait?condition=not-running"
        async with self._answer("POST", target, what=f"waiting for {container:.12}") as answer:
            await answer.read()

    async def stop(self, container: str, timeout_s: int) -> None:
        """The image's stop signal, then after the timeout SIGKILL; no effect if it does not run."""
        target = f"/containers/{_part(container)}/stop?t={timeout_s}"
        limit_s = timeout_s + STOP_GRACE_S
        await self._done("POST", target, what=f"stopping {container:.12}", limit_s=limit_s, also=(304,))

    async def kill(self, container: str, signal: str) -> None:
        query = urlencode({"signal": signal})
        target = f"/containers/{_part(container)}/kill?{query}"
        await self._done("POST", target, what=f"sending {signal} to {container:.12}")

    async def remove(self, container: str, *, force: bool) -> None:
        """Remove it with its nameless volumes; no effect if it is gone. By force also if it runs, without patience."""
        if force:
            # Podman would give it ten seconds to end by itself.
            with suppress(EngineRefused):
                await self.stop(container, 0)
        target = f"/containers/{_part(container)}?v=1&force={int(force)}"
        await self._done("DELETE", target, what=f"removing {container:.12}", limit_s=WORK_S, also=(404,))

    @asynccontextmanager
    async def logs(self, container: str, since_s: int, *, follow: bool) -> AsyncIterator[Answer]:
        """Both outputs with times, from a second on."""
        wanted = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow), "since": since_s}
        target = f"/containers/{_part(container)}/logs?{urlencode(wanted)}"
        async with self._answer("GET", target, what=f"reading logs of {container:.12}") as answer:
            yield answer

    async def stats(self, container: str) -> StatsSample:
        target = f"/containers/{_part(container)}/stats?stream=false&one-shot=true"
        return await self._json("GET", target, StatsSample, what=f"measuring {container:.12}")

    # commands inside

    async def create_exec(self, container: str, body: Mapping[str, Any]) -> str:
        target = f"/containers/{_part(container)}/exec"
        made = await self._json(
            "POST", target, dict[str, Any], body=body, what=f"preparing a command in {container:.12}"
        )
        found = made.get("Id")
        if not isinstance(found, str) or not _ID.match(found):
            raise EngineFault(Fault.GARBLED, f"the engine prepared a command without a proper id: {found!r:.80}")
        return found

    @asynccontextmanager
    async def start_exec(self, exec_id: str, *, is_tty: bool) -> AsyncIterator[Answer]:
        """Run it with both directions on one connection."""
        headers = (*_JSON, ("Connection", "Upgrade"), ("Upgrade", "tcp"))
        body = msgspec.json.encode({"Detach": False, "Tty": is_tty})
        target = f"/exec/{_part(exec_id)}/start"
        async with self._answer("POST", target, body=body, headers=headers, what="running a command") as answer:
            yield answer

    async def resize_exec(self, exec_id: str, height: int, width: int) -> None:
        target = f"/exec/{_part(exec_id)}/resize?{urlencode({'h': height, 'w': width})}"
        await self._done("POST", target, what="resizing a terminal")

    async def inspect_exec(self, exec_id: str) -> ExecDetails:
        return await self._json("GET", f"/exec/{_part(exec_id)}/json", ExecDetails, what="asking how a command ended")

    # how calls are made

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        target: str,
        *,
        what: str,
        body: bytes = b"",
        headers: Headers = (),
        upload: AsyncIterable[bytes] | None = None,
        also: tuple[int, ...] = (),
        is_plain: bool = False,
    ) -> AsyncIterator[Answer]:
        """An answer that is a success, or has one of the other statuses that count as one."""
        if not is_plain and not self._prefix:
            await self.version()
        target = target if is_plain else self._prefix + target
        async with self._transport.open_answer(
            method, target, body=body, headers=headers, upload=upload, what=what
        ) as answer:
            if not (answer.status < 300 or answer.status in also):
                with _patience(ANSWER_S, what):
                    raise await refused(answer, what)
            yield answer

    async def _done(
        self, method: str, target: str, *, what: str, limit_s: float = ANSWER_S, also: tuple[int, ...] = ()
    ) -> None:
        with _patience(limit_s, what):
            async with self._answer(method, target, what=what, also=also) as answer:
                await answer.read()

    async def _json(
        self,
        method: str,
        target: str,
        kind: type[T],
        *,
        what: str,
        body: Mapping[str, Any] | None = None,
        limit_s: float = ANSWER_S,
        is_plain: bool = False,
    ) -> T:
        sent = b"" if body is None else msgspec.json.encode(body)
        headers = () if body is None else _JSON
        with _patience(limit_s, what):
            async with self._answer(method, target, what=what, body=sent, headers=headers, is_plain=is_plain) as answer:
                found = await answer.read()
        try:
            return msgspec.json.decode(found, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EngineFault(Fault.GARBLED, f"{what}: the engine's answer makes no sense: {error}") from error

    @asynccontextmanager
    async def _progress(
        self,
        method: str,
        target: str,
        *,
        what: str,
        headers: Headers = (),
        upload: AsyncIterable[bytes] | None = None,
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        async with self._answer(method, target, what=what, headers=headers, upload=upload) as answer:
            yield Progress(answer)


class Progress:
    """Lines of a long answer, one by one."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._lines = JsonLines()
        self._ready: deque[dict[str, Any]] = deque()
        self._is_over = False

    def __aiter__(self) -> Progress:
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            data = await self._answer.receive_some()
            self._is_over = not data
            self._ready.extend(self._lines.feed(data) if data else self._lines.finish())
        return self._ready.popleft()


def encoded_auth(auth: RegistryAuth) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(auth)).decode()


@contextmanager
def _patience(limit_s: float, what: str) -> Iterator[None]:
    try:
        with trio.fail_after(limit_s):
            yield
    except trio.TooSlowError:
        raise EngineFault(Fault.TIMEOUT, f"{what}: no answer from the engine within {limit_s:g} s") from None


def _part(name: str) -> str:
    """A name as one part of a path: an id with a slash in it would be another call."""
    return quote(name, safe="")


def _common_version(found: EngineVersion) -> str:
    newest, oldest = _numbers(found.api_version), _numbers(found.min_api_version)
    major, minor = max(min(API_VERSION_MAX, newest), oldest)
    return f"{major}.{minor}"


def _numbers(text: str) -> tuple[int, int]:
    match = re.match(r"(\d{1,4})\.(\d{1,4})\Z", text)
    if match is None:
        raise EngineFault(Fault.GARBLED, f"the engine calls its API version {text!r:.40}")
    return int(match[1]), int(match[2])
