"""Templates of a task from the first rendering to changes, with servers that answer as the test says."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from fedsched.client.context import TaskContext
from fedsched.client.hooks import templates as module
from fedsched.client.hooks.hook import NO_RESULT, HookFailed
from fedsched.client.hooks.templates import TemplatesHook
from fedsched.drivers.driver import DriverError, ExecResult, ExitResult
from fedsched.model.errors import BadRequest, FedschedError
from fedsched.model.service import ServiceRegistration
from fedsched.model.task import ChangeScript, Template, WaitConfig
from tests.builders import a_task
from tests.client.fake_region import FakeRegion, an_alloc_context, asked, driver_of

OWN = "nomad/jobs/shop"
VAR = '{{ with nomadVar "nomad/jobs/shop" }}v={{ .v }}{{ end }}'
AT_ONCE = WaitConfig(min_s=0.0, max_s=0.0)
Story = Callable[["Scene"], Awaitable[None]]


@pytest.fixture(autouse=True)
def _without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take real time, which a virtual clock does not wait for."""

    async def inline(function: Any, *arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(module, "_in_thread", inline)


class Scene:
    """A task with templates, its region, and its hook."""

    def __init__(self, root: Path, nursery: trio.Nursery, *templates: Template, **settings: Any) -> None:
        self.region = FakeRegion()
        alloc = an_alloc_context(root, self.region, tasks=[a_task("main", templates=templates)], template=settings)
        self.task: TaskContext = alloc.tasks["main"]
        self.hook = TemplatesHook(self.task)
        self.nursery = nursery

    async def start(self) -> dict[str, str]:
        """Render for the first time, and go on in the background."""
        result = await self.hook.prestart({})
        self.nursery.start_soon(self.hook.run)
        self.task.task_id = "id"
        await self.hook.poststart()
        await trio.testing.wait_all_tasks_blocked()
        return dict(result.template_env)

    def text(self, path: str = "local/out") -> str:
        return (self.task.dirs.task / path).read_text()

    @property
    def asked(self) -> Any:
        return asked(self.task)

    def messages(self) -> list[str]:
        return [event.message for event in self.asked.events]


def a_template(text: str = VAR, **fields: Any) -> Template:
    return Template(**{"embedded_tmpl": text, "dest_path": "local/out", "splay_s": 0.0, "wait": AT_ONCE, **fields})


def play(root: Path, story: Story, *templates: Template, **settings: Any) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await story(Scene(root, nursery, *templates, **settings))
            nursery.cancel_scope.cancel()

    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def test_a_task_without_templates_is_left_alone(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        assert await scene.hook.prestart({}) is NO_RESULT
        await scene.hook.run()

    play(tmp_path, story)


def test_all_templates_are_there_before_the_task_starts(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        env = await scene.start()

        assert scene.text() == "v=1"
        assert scene.text("secrets/port") == "linux"
        assert oct((scene.task.dirs.secrets / "port").stat().st_mode)[-4:] == "0600"
        assert env == {"A": "x", "B": "y z"}

    play(
        tmp_path,
        story,
        a_template(),
        a_template('{{ attr "kernel.name" }}', dest_path="secrets/port", perms="0600"),
        a_template('A=x\nexport B="y z" # said\n\n#C=d\n', dest_path="local/env", envvars=True),
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_belongs_to_whom_the_template_says(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.start()
        found = (scene.task.dirs.task / "local/out").stat()
        assert (found.st_uid, found.st_gid) == (1234, 0)

    play(tmp_path, story, a_template("x", uid=1234))


def test_the_task_waits_for_missing_data_and_says_for_what(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.start)
            await trio.sleep(2.9)
            assert scene.messages() == []
            await trio.sleep(20)
            assert scene.messages() == [
                "Missing: nomad.var(nomad/jobs/shop), nomad.var(nomad/jobs/shop/a), nomad.var(nomad/jobs/shop/b), "
                "and 1 more"
            ]
            scene.region.set_variable(f"{OWN}/a", x="1")
            await trio.sleep(4)
            assert scene.messages()[1] == (
                "Missing: nomad.var(nomad/jobs/shop), nomad.var(nomad/jobs/shop/b), nomad.var(nomad/jobs/shop/c)"
            )
            for path in (OWN, f"{OWN}/b", f"{OWN}/c"):
                scene.region.set_variable(path, v="2")
        assert scene.text() == "v=2"
        assert len(scene.messages()) == 2

    more = "".join(f'{{{{ (nomadVar "{OWN}/{name}").x }}}}' for name in "abc")
    play(tmp_path, story, a_template(), a_template(more, dest_path="local/more"))


def test_a_change_writes_the_file_and_restarts_the_task(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        scene.region.set_variable(OWN, v="2")
        await trio.sleep(0.1)

        assert scene.text() == "v=2"
        assert scene.asked.restarts == [("Template with change_mode restart re-rendered", False)]

    play(tmp_path, story, a_template())


def test_the_same_bytes_again_change_nothing(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        before = (scene.task.dirs.task / "local/out").stat()
        scene.region.set_variable(OWN, v="1", other="2")
        scene.region.touch()
        await trio.sleep(600)

        after = (scene.task.dirs.task / "local/out").stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        assert scene.asked.restarts == []

    play(tmp_path, story, a_template())


def test_data_that_keeps_changing_is_waited_for_up_to_a_limit(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="0")
        await scene.start()
        for number in range(1, 8):
            scene.region.set_variable(OWN, v=str(number))
            await trio.sleep(3)
            if number < 3:
                assert scene.text() == "v=0"
        assert scene.text() in ("v=3", "v=4")  # at the latest ten seconds after the first
        await trio.sleep(10)
        assert scene.text() == "v=7"
        assert len(scene.asked.restarts) == 2

    play(tmp_path, story, a_template(wait=WaitConfig(min_s=5.0, max_s=10.0)))


def test_without_a_wait_of_its_own_a_template_takes_the_clients(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        scene.region.set_variable(OWN, v="2")
        await trio.sleep(6.9)
        assert scene.text() == "v=1"
        await trio.sleep(0.2)
        assert scene.text() == "v=2"

    play(tmp_path, story, a_template(wait=None), wait_min_s=7.0)


def test_signals_are_sent_once_each_after_part_of_the_splay(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        scene.region.set_variable(OWN, v="2")
        await trio.sleep(10.1)

        assert scene.asked.signals == [("SIGHUP", "Template re-rendered"), ("SIGUSR1", "Template re-rendered")]
        assert scene.asked.restarts == []

    play(
        tmp_path,
        story,
        a_template(change_mode="signal", change_signal="SIGHUP", splay_s=10.0),
        a_template(f"b{VAR}", change_mode="signal", change_signal="SIGHUP", dest_path="local/b"),
        a_template(f"c{VAR}", change_mode="signal", change_signal="SIGUSR1", dest_path="local/c"),
        a_template(f"d{VAR}", change_mode="noop", dest_path="local/d"),
    )


def test_a_restart_makes_signals_and_scripts_needless(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        scene.region.set_variable(OWN, v="2")
        await trio.sleep(1)

        assert len(scene.asked.restarts) == 1
        assert scene.asked.signals == []
        assert driver_of(scene.task).commands == []

    script = ChangeScript(command="/bin/x")
    play(
        tmp_path,
        story,
        a_template(change_mode="signal", change_signal="SIGHUP"),
        a_template(f"b{VAR}", change_mode="script", change_script=script, dest_path="local/b"),
        a_template(f"c{VAR}", dest_path="local/c"),
    )


@pytest.mark.parametrize(
    ("result", "fail", "takes_s", "words"),
    [
        (ExecResult(0), True, 0.0, ""),
        (ExecResult(3), False, 0.0, "exit code 3"),
        (ExecResult(3), True, 0.0, "exit code 3"),
        (ExecResult(0, signal=9), True, 0.0, "signal 9"),
        (DriverError("gone"), True, 0.0, "gone"),
        (ExecResult(0), True, 60.0, "not done after 5 s"),
    ],
)
def test_scripts_run_inside_the_task(tmp_path: Path, result: Any, fail: bool, takes_s: float, words: str) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        driver_of(scene.task).result, driver_of(scene.task).takes_s = result, takes_s
        await scene.start()
        scene.region.set_variable(OWN, v="2")
        await trio.sleep(10)

        assert driver_of(scene.task).commands == [("/bin/reload", "shop")]
        if fail and words:
            assert scene.asked.kills == [(f"Template ran script /bin/reload: {words}", True)]
        else:
            assert scene.asked.kills == []
            assert words in scene.messages()[-1]

    script = ChangeScript(command="/bin/reload", args=("${NOMAD_JOB_ID}",), timeout_s=5.0, fail_on_error=fail)
    play(tmp_path, story, a_template(change_mode="script", change_script=script))


def test_a_script_may_run_after_the_first_rendering_once_the_task_is_up(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.hook.prestart({})
        assert driver_of(scene.task).commands == []
        scene.task.task_id = "id"
        await scene.hook.poststart()
        assert driver_of(scene.task).commands == [("/bin/warm",)]
        await scene.hook.prestart({})
        await scene.hook.poststart()
        assert len(driver_of(scene.task).commands) == 1

    script = ChangeScript(command="/bin/warm", run_on_first_render=True)
    play(tmp_path, story, a_template("x", change_mode="script", change_script=script))


def test_a_template_once_is_never_rendered_again(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        scene.region.set_variable(OWN, v="2")
        await trio.sleep(60)
        assert scene.text() == "v=1"

    play(tmp_path, story, a_template(once=True))


def test_changes_while_the_task_is_down_only_write_the_file(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        await scene.hook.exited(ExitResult())
        scene.region.set_variable(OWN, v="2")
        await trio.sleep(1)
        assert (scene.text(), scene.asked.restarts) == ("v=2", [])
        queries = len(scene.region.calls)
        await scene.hook.prestart({})
        assert len(scene.region.calls) == queries  # all of it is known and fresh
        await scene.hook.poststart()
        scene.region.set_variable(OWN, v="3")
        await trio.sleep(1)
        assert len(scene.asked.restarts) == 1
        await scene.hook.prekill()
        scene.region.set_variable(OWN, v="4")
        await trio.sleep(1)
        assert len(scene.asked.restarts) == 1

    play(tmp_path, story, a_template())


def test_a_template_follows_what_it_depends_on_now(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, use="a")
        scene.region.set_variable(f"{OWN}/a", x="1")
        scene.region.set_variable(f"{OWN}/b", x="2")
        await scene.start()
        assert scene.text() == "1"
        scene.region.set_variable(OWN, use="b")
        await trio.sleep(1)
        assert scene.text() == "2"
        scene.region.set_variable(f"{OWN}/b", x="3")
        await trio.sleep(1)
        assert scene.text() == "3"
        del scene.region.variables[f"{OWN}/b"]
        scene.region.touch()
        await trio.sleep(1)
        assert scene.text() == "3"  # what is missing later on changes nothing
        assert len(scene.asked.restarts) == 2

    play(tmp_path, story, a_template(f'{{{{ (nomadVar (print "{OWN}/" (nomadVar "{OWN}").use)).x }}}}'))


def test_services_and_lists_are_data_too(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        assert scene.text() == "|none|nomad/jobs/shop "
        one = ServiceRegistration(id="1", service_name="db", address="10.0.0.1", port=5432)
        scene.region.set_services(one)
        await trio.sleep(1)
        assert scene.text() == "db|10.0.0.1:5432|nomad/jobs/shop "

    play(
        tmp_path,
        story,
        a_template(
            "{{ range nomadServices }}{{ .Name }}{{ end }}|"
            '{{ range nomadService "db" }}{{ .Address }}:{{ .Port }}{{ else }}none{{ end }}|'
            '{{ range nomadVarList "nomad/jobs" }}{{ .Path }} {{ end }}'
        ),
    )


def test_a_rendering_that_fails_later_leaves_the_file_and_the_task(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        scene.region.set_variable(OWN, v="x")
        await trio.sleep(1)
        assert scene.text() == "2"
        assert "not rendered again: template 1:1:" in scene.messages()[-1]
        assert (scene.asked.kills, scene.asked.restarts) == ([], [])

    play(tmp_path, story, a_template(f'{{{{ add 1 (parseInt (nomadVar "{OWN}").v) }}}}'))


def test_a_running_task_found_again_keeps_its_files_until_data_differs(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        (scene.task.dirs.task / "local/out").write_text("v=1")
        (scene.task.dirs.task / "local/env").write_text("A=old")
        scene.task.task_id = "id"
        scene.region.is_connected = False
        result = await scene.hook.prestart({})  # does not wait for servers
        assert dict(result.template_env) == {"A": "old"}
        await scene.start()
        scene.region.is_connected = True
        await trio.sleep(100)
        assert scene.asked.restarts == []
        scene.region.set_variable(OWN, v="2")
        await trio.sleep(1)
        assert (scene.text(), len(scene.asked.restarts)) == ("v=2", 1)

    env = a_template(f'{{{{ with nomadVar "{OWN}" }}}}A=old{{{{ end }}}}', dest_path="local/env", envvars=True)
    play(tmp_path, story, a_template(), env)


def test_a_running_task_whose_file_changed_while_no_agent_was_there_is_restarted(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="2")
        (scene.task.dirs.task / "local/out").write_text("v=1")
        scene.task.task_id = "id"
        await scene.start()
        await trio.sleep(1)
        assert (scene.text(), len(scene.asked.restarts)) == ("v=2", 1)

    play(tmp_path, story, a_template())


def test_data_that_servers_refuse_again_and_again_is_given_up(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.refusing = BadRequest("not like this")
        started = trio.current_time()
        with pytest.raises(HookFailed, match="given up after 12 attempts: not like this"):
            await scene.hook.prestart({})
        assert 200 < trio.current_time() - started < 400
        assert len(scene.region.calls) == 12

    play(tmp_path, story, a_template())


def test_a_variable_that_is_not_for_the_task_fails_at_once(tmp_path: Path) -> None:
    class NotForTask(FedschedError):
        code = "not_for_task"

    async def story(scene: Scene) -> None:
        scene.region.refusing = NotForTask("'app' is not for task 'main'")
        with pytest.raises(HookFailed, match="not for task"):
            await scene.hook.prestart({})
        assert len(scene.region.calls) == 1

    play(tmp_path, story, a_template('{{ nomadVar "app" }}'))


def test_a_running_task_outlives_servers_that_cannot_be_reached_but_not_refusals(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.set_variable(OWN, v="1")
        await scene.start()
        scene.region.is_connected = False
        scene.region.touch()
        await trio.sleep(36_000)
        assert scene.asked.kills == []
        scene.region.is_connected = True
        scene.region.set_variable(OWN, v="2")
        await trio.sleep(120)
        assert scene.text() == "v=2"
        scene.region.refusing = BadRequest("no more")
        scene.region.touch()
        await trio.sleep(3600)
        assert [(why.startswith("Template failed: nomad.var"), bad) for why, bad in scene.asked.kills] == [(True, True)]

    play(tmp_path, story, a_template())


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (a_template("{{ nope }}"), "template 1:1:4: there is no function"),
        (a_template("x", perms="rw"), "not octal"),
        (a_template("x", perms="77777"), "not octal"),
        (a_template("", source_path="local/none.tmpl"), "none.tmpl"),
        (a_template("", source_path="../../../etc/passwd"), "cannot be read"),
        (a_template("x", dest_path="../../outside"), "leaves"),
        (a_template("x", dest_path="local/link/outside"), "leaves"),
        (a_template("x", dest_path="local"), "cannot be written"),
        (a_template("x", dest_path=""), "no path"),
        (a_template("not env", envvars=True), "local/out:1"),
        (a_template('{{ file "/etc/passwd" }}'), "cannot be read"),
        (a_template('{{ file "local/link/x" }}'), "cannot be read"),
        (a_template("{{ plugin `x` }}"), "disabled"),
        (a_template("{{ range loop 100000000 }}{{ end }}"), "steps"),
    ],
)
def test_what_a_job_must_not_do_fails_the_task_before_it_starts(tmp_path: Path, template: Template, words: str) -> None:
    async def story(scene: Scene) -> None:
        (scene.task.dirs.local / "link").symlink_to("/tmp")
        with pytest.raises(HookFailed, match=words) as caught:
            await scene.hook.prestart({})
        assert caught.value.event == "Template"
        assert not caught.value.is_recoverable

    play(tmp_path, story, template)
    assert not list(tmp_path.rglob("outside"))


def test_sources_and_destinations_are_found_where_the_task_sees_them(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        (scene.task.dirs.local / "in.tmpl").write_text('<{{ file "local/data" }}>')
        (scene.task.dirs.local / "data").write_text("d")
        await scene.start()
        assert (scene.task.dirs.shared / "data" / "out").read_text() == "<d>"
        assert scene.text("etc/app.conf") == "main"

    play(
        tmp_path,
        story,
        a_template("", source_path="local/in.tmpl", dest_path="${NOMAD_ALLOC_DIR}/data/out"),
        a_template('{{ env "NOMAD_TASK_NAME" }}', dest_path="/etc/app.conf"),
    )
