"""Images: pulled once for all that want them, given up when nothing moves, removed some time after their last use."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from fedsched.drivers.docker.config import DockerSettings
from fedsched.drivers.docker.coordinator import ImageCoordinator, read_archive
from fedsched.drivers.docker.credentials import registry_auth
from fedsched.drivers.docker.engine import Engine
from fedsched.drivers.docker.image_holds import ImageHolds
from fedsched.drivers.docker.image_reference import DEFAULT_REGISTRY, parse_reference
from fedsched.drivers.docker.inside import open_inside
from fedsched.drivers.docker.pull_progress import LAYERS_MAX, PullProgress
from fedsched.drivers.docker.records import RegistryAuth
from fedsched.drivers.docker.task_config import task_settings_from
from fedsched.drivers.docker.transport import Transport
from fedsched.drivers.driver import DriverError
from fedsched.telemetry.log import get_logger
from tests.drivers.fake_engine import IMAGE_ID, FakeEngine, MemoryEndpoint, Request

APP = parse_reference("app:2")

Script = Callable[[FakeEngine, ImageCoordinator], Awaitable[None]]


def coordinate(script: Script, *, patience_s: float = 0, **settings: Any) -> FakeEngine:
    """In virtual time, which moves on when nothing happened for so long: real files need a moment."""
    fake = FakeEngine()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            engine = Engine(Transport(MemoryEndpoint(fake, nursery)))
            images = ImageCoordinator(engine, DockerSettings(**settings), get_logger("drivers"))
            await nursery.start(images.run)
            await script(fake, images)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=patience_s))
    return fake


def nothing(words: str) -> None:
    return


@pytest.mark.parametrize(
    ("text", "name", "registry"),
    [
        ("redis", "redis:latest", DEFAULT_REGISTRY),
        ("team/app:1.2", "team/app:1.2", DEFAULT_REGISTRY),
        ("host:5000/team/app", "host:5000/team/app:latest", "host:5000"),
        ("https://ghcr.io/a/b:x", "ghcr.io/a/b:x", "ghcr.io"),
        ("localhost/a", "localhost/a:latest", "localhost"),
        ("a@sha256:" + "0" * 64, "a@sha256:" + "0" * 64, DEFAULT_REGISTRY),
        ("a:1@sha256:" + "0" * 64, "a@sha256:" + "0" * 64, DEFAULT_REGISTRY),
    ],
)
def test_names_of_images_are_understood(text: str, name: str, registry: str) -> None:
    found = parse_reference(text)

    assert (str(found), found.registry) == (name, registry)
    assert found.moves == name.endswith(":latest")


@pytest.mark.parametrize(
    "text", ["", " ", "a b", "a:b:c", "-x", "a//b", "a?x=1", "x" * 600, "a:\n", "a@sha256:zz", "../a"]
)
def test_names_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(DriverError, match="name of an image"):
        parse_reference(text)


def test_an_image_is_due_after_the_delay_since_its_last_holder_left() -> None:
    holds = ImageHolds(delay_s=180)
    holds.hold("i", "a")
    holds.hold("i", "b")

    holds.release("i", "a", now=0)
    assert holds.wake_at() == math.inf
    holds.release("i", "b", now=10)
    holds.release("i", "b", now=20)
    assert holds.wake_at() == 190
    assert holds.wake(189) == []
    holds.hold("i", "c")
    assert holds.wake(500) == []
    holds.release("i", "c", now=500)
    assert holds.wake(680) == ["i"]
    assert holds.wake(9999) == []


def test_images_stay_where_the_operator_wants_them() -> None:
    holds = ImageHolds(delay_s=0, removes=False)
    holds.hold("i", "a")
    holds.release("i", "a", now=0)
    assert holds.wake(100) == []


def test_many_that_want_the_same_image_share_one_pull() -> None:
    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        told: list[str] = []
        found: list[str] = []

        async def want(holder: str) -> None:
            found.append(await images.pull(APP, None, 300, holder, told.append))

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(want, f"task{number}")
        assert found == [IMAGE_ID] * 5
        assert told == ["Pulling app:2"] * 5

    assert coordinate(script).count("POST /images/create") == 1


def test_other_credentials_are_another_pull() -> None:
    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(images.pull, APP, RegistryAuth(username=name), 300, name, nothing)

    fake = coordinate(script)
    assert fake.count("POST /images/create") == 2


def test_credentials_travel_in_a_header() -> None:
    seen: list[dict[str, str]] = []

    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        async def note(request: Request) -> None:
            seen.append(json.loads(base64.urlsafe_b64decode(request.headers["x-registry-auth"])))
            await request.reply(500, {"message": "enough"})

        fake.script("POST /images/create", note)
        with pytest.raises(DriverError):
            await images.pull(APP, RegistryAuth(username="u", password="p"), 300, "a", nothing)

    coordinate(script)
    assert (seen[0]["username"], seen[0]["password"]) == ("u", "p")


def pulling(
    *lines: dict[str, Any], every_s: float = 1.0, for_ever: bool = False
) -> Callable[[Request], Awaitable[None]]:
    async def handle(request: Request) -> None:
        await request.start_chunks()
        for line in lines:
            await request.chunk(json.dumps(line).encode() + b"\r\n")
            await trio.sleep(every_s)
        if for_ever:
            await trio.sleep_forever()
        await request.chunk(b"")

    return handle


def test_progress_is_told_from_time_to_time() -> None:
    told: list[str] = []

    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        layer = {"id": "a", "status": "Downloading", "progressDetail": {"current": 1_000_000, "total": 4_000_000}}
        fake.script("POST /images/create", pulling({"id": "b", "status": "Pull complete"}, *[layer] * 25))
        fake.images["app:2"] = IMAGE_ID
        await images.pull(APP, None, 300, "a", told.append)

    coordinate(script)
    assert told[0] == "Pulling app:2"
    assert told[1:] == ["Pulling app:2: 1 of 2 layers here, 0 waiting, 1.0 of 4.0 MB"] * 2


def test_a_pull_that_says_nothing_for_too_long_is_given_up() -> None:
    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        fake.script("POST /images/create", pulling({"status": "x"}, {"status": "y"}, every_s=100, for_ever=True))
        began = trio.current_time()
        with pytest.raises(DriverError, match="no progress for 120 s") as caught:
            await images.pull(APP, None, 3000, "a", nothing)
        assert caught.value.is_recoverable
        assert trio.current_time() - began == pytest.approx(220)

    coordinate(script)


def test_a_pull_has_an_end_even_if_it_moves() -> None:
    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        fake.script("POST /images/create", pulling(*[{"status": "x"}] * 1000))
        with pytest.raises(DriverError, match="more than 60 s") as caught:
            await images.pull(APP, None, 60, "a", nothing)
        assert caught.value.is_recoverable

    coordinate(script)


def test_a_pull_that_nobody_waits_for_is_cancelled_and_can_be_begun_again() -> None:
    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        fake.script("POST /images/create", pulling({"status": "x"}, for_ever=True), times=1)
        with trio.move_on_after(5):
            await images.pull(APP, None, 300, "a", nothing)
        await trio.testing.wait_all_tasks_blocked()

        assert await images.pull(APP, None, 300, "b", nothing) == IMAGE_ID

    assert coordinate(script).count("POST /images/create") == 2


def test_one_who_leaves_does_not_spoil_it_for_the_others() -> None:
    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        fake.script("POST /images/create", pulling({"status": "x"}, every_s=30))
        fake.images["app:2"] = IMAGE_ID

        async def impatient() -> None:
            with trio.move_on_after(5):
                await images.pull(APP, None, 300, "a", nothing)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(impatient)
            assert await images.pull(APP, None, 300, "b", nothing) == IMAGE_ID

    assert coordinate(script).count("POST /images/create") == 1


@pytest.mark.parametrize(
    ("line", "is_recoverable"),
    [
        ({"error": "manifest for app:2 not found: manifest unknown"}, False),
        ({"errorDetail": {"message": "pull access denied for app"}}, False),
        ({"error": "unauthorized: authentication required"}, False),
        ({"error": "dial tcp: i/o timeout"}, True),
        ({"errorDetail": {"code": 5}}, True),
    ],
)
def test_a_pull_that_fails_on_its_way_says_so(line: dict[str, Any], is_recoverable: bool) -> None:
    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        fake.script("POST /images/create", pulling(line))
        with pytest.raises(DriverError, match="pulling app:2 failed") as caught:
            await images.pull(APP, None, 300, "a", nothing)
        assert caught.value.is_recoverable is is_recoverable

    coordinate(script)


def test_an_image_that_is_not_there_after_its_pull_is_told() -> None:
    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        fake.script("POST /images/create", pulling({"status": "ok"}))
        with pytest.raises(DriverError, match="does not have it"):
            await images.pull(APP, None, 300, "a", nothing)

    coordinate(script)


def test_nothing_is_pulled_by_a_driver_that_does_not_run() -> None:
    async def main() -> None:
        images = ImageCoordinator(None, DockerSettings(), get_logger("drivers"))  # type: ignore[arg-type]
        with pytest.raises(DriverError, match="does not run"):
            await images.pull(APP, None, 300, "a", nothing)

    trio.run(main)


def test_unused_images_are_removed_after_a_while_and_refusals_do_no_harm() -> None:
    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        assert await images.local("app:1", "a") == IMAGE_ID
        assert await images.local("other:1", "a") is None
        images.hold("sha256:2", "b")
        images.release(IMAGE_ID, "a")
        await trio.sleep(100)
        assert fake.removed_images == []
        await trio.sleep(100)
        assert fake.removed_images == [IMAGE_ID]

        for status in (404, 409, 500):
            fake.script_reply("DELETE /images", status, {"message": "no"}, times=1)
            images.release("sha256:2", "b")
            await trio.sleep(200)
            images.hold("sha256:2", "b")
        fake.is_down = True
        images.release("sha256:2", "b")
        await trio.sleep(200)
        assert fake.removed_images == [IMAGE_ID]

    coordinate(script)


def test_an_archive_is_loaded_and_its_image_found(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(b"tar" * 1000)
    seen: list[bytes] = []

    def archive() -> AsyncIterator[bytes]:
        return read_archive(open_inside(tmp_path, "image.tar"))

    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        async def load(request: Request) -> None:
            seen.append(request.body)
            await request.reply(200, b'{"stream":"Loaded image: app:2"}\n')

        fake.script("POST /images/load", load)
        with pytest.raises(DriverError, match="holds no image app:2"):
            await images.load(archive(), APP, 60, "a")
        fake.images["app:2"] = IMAGE_ID
        assert await images.load(archive(), APP, 60, "a") == IMAGE_ID
        fake.script_reply("POST /images/load", 200, b'{"error":"unexpected EOF"}\n')
        with pytest.raises(DriverError, match="unexpected EOF"):
            await images.load(archive(), APP, 60, "a")

    coordinate(script, patience_s=0.5)
    assert seen == [b"tar" * 1000] * 2


def test_an_archive_that_is_refused_early_is_not_sent_to_its_end() -> None:
    sent: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            sent.append(1)
            yield b"x" * 1000
            await trio.sleep(1)

    async def script(fake: FakeEngine, images: ImageCoordinator) -> None:
        async def refuse_at_once(connection: Any, stream: trio.abc.Stream) -> Request:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            await trio.sleep(1000)
            raise trio.BrokenResourceError

        await images.local("app:1", "a")
        fake._read = refuse_at_once  # type: ignore[method-assign]
        with pytest.raises(DriverError, match="413"):
            await images.load(endless(), APP, 600, "a")

    coordinate(script)
    assert len(sent) < 10


def test_only_plain_files_inside_are_opened(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "link").symlink_to("/etc/passwd")
    for path in ("", "dir", "link", "out/passwd", "../x", "/etc/passwd", "nothing", "a\0b"):
        with pytest.raises(DriverError):
            open_inside(tmp_path, path)


def test_a_pull_of_very_many_layers_is_bounded() -> None:
    progress = PullProgress("x")
    for number in range(LAYERS_MAX * 2):
        progress.feed({"id": str(number), "status": "Waiting"})
    progress.feed({"id": 5, "status": None})

    assert f"of {LAYERS_MAX} layers here, {LAYERS_MAX} waiting" in progress.words()


# credentials


def auth_of(image: str, operator: DockerSettings, **config: Any) -> RegistryAuth | None:
    task = task_settings_from({"image": image, **config}, operator)
    return trio.run(registry_auth, parse_reference(image), task, operator)


def test_a_tasks_own_credentials_come_first(tmp_path: Path) -> None:
    operator = DockerSettings(auth_config=str(tmp_path / "nothing"))
    found = auth_of("app:1", operator, auth={"username": "u", "password": "p", "server_address": "s"})
    assert found == RegistryAuth(username="u", password="p", serveraddress="s")


def test_the_operators_file_is_read_like_dockers(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    both = base64.b64encode(b"user:pa:ss").decode()
    path.write_text(
        json.dumps(
            {
                "auths": {
                    "https://index.docker.io/v1/": {"auth": both},
                    "ghcr.io": {"identitytoken": "t"},
                    "empty.io": {},
                }
            }
        )
    )
    operator = DockerSettings(auth_config=str(path))

    docker = auth_of("app:1", operator)
    assert docker is not None
    assert (docker.username, docker.password) == ("user", "pa:ss")
    assert auth_of("ghcr.io/a/b:1", operator) == RegistryAuth(identitytoken="t", serveraddress="ghcr.io")
    assert auth_of("empty.io/a:1", operator) is None
    assert auth_of("elsewhere.io/a:1", operator) is None


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"auths": {"index.docker.io": {"auth": "!!"}}}', '{"auths": {"index.docker.io": {"auth": "YWJj"}}}'],
)
def test_a_file_of_nonsense_fails_the_pull_unless_that_may_be_soft(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    operator = DockerSettings(auth_config=str(path))

    with pytest.raises(DriverError, match=r"auth\.config"):
        auth_of("app:1", operator)
    assert auth_of("app:1", operator, auth_soft_fail=True) is None


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A credential helper that runs this Python."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(body: str) -> None:
        path = tmp_path / "docker-credential-test"
        path.write_text(f"#!{sys.executable}\nimport json, sys\nserver = sys.stdin.read()\n{body}\n")
        path.chmod(0o755)

    return write


def test_a_helper_is_asked_for_the_registry(helper: Callable[[str], None], tmp_path: Path) -> None:
    operator = DockerSettings(auth_helper="test")
    helper('print(json.dumps({"Username": server, "Secret": "s"}))')
    assert auth_of("ghcr.io/a:1", operator) == RegistryAuth(username="ghcr.io", password="s", serveraddress="ghcr.io")

    helper('print(json.dumps({"Username": "<token>", "Secret": "s"}))')
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"credHelpers": {"ghcr.io": "test"}}))
    by_file = DockerSettings(auth_config=str(path))
    assert auth_of("ghcr.io/a:1", by_file) == RegistryAuth(identitytoken="s", serveraddress="ghcr.io")

    helper("sys.exit(1)")
    assert auth_of("ghcr.io/a:1", operator) is None


def test_a_helper_that_is_missing_or_talks_nonsense_is_told(helper: Callable[[str], None]) -> None:
    with pytest.raises(DriverError, match="docker-credential-missing"):
        auth_of("app:1", DockerSettings(auth_helper="missing"))
    helper("print('nonsense')")
    with pytest.raises(DriverError, match="docker-credential-test"):
        auth_of("app:1", DockerSettings(auth_helper="test"))
