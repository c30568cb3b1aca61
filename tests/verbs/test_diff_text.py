from __future__ import annotations

from fedsched.model.diff import diff_jobs
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.policies import EphemeralDisk
from fedsched.model.task import Task
from fedsched.verbs.diff_text import diff_lines


def a_job(*groups: TaskGroup, priority: int = 50) -> Job:
    return Job(id="web", name="web", task_groups=groups, priority=priority)


def a_group(driver: str, *, size_mb: int) -> TaskGroup:
    disk = EphemeralDisk(size_mb=size_mb)
    return TaskGroup(name="front", ephemeral_disk=disk, tasks=(Task(name="server", driver=driver),))


def test_each_change_stands_under_what_it_belongs_to_with_its_mark() -> None:
    old = a_job(
        a_group("exec", size_mb=100),
        TaskGroup(name="gone"),
        priority=50,
    )
    new = a_job(
        TaskGroup(
            name="front", ephemeral_disk=EphemeralDisk(size_mb=200), tasks=(Task(name="server", driver="docker"),)
        ),
        TaskGroup(name="new"),
        priority=60,
    )
    lines = list(diff_lines(diff_jobs(old, new), verbose=False))

    assert lines[:2] == ['+/- Job: "web"', '+/- Priority: "50" => "60"']
    assert '+/- Task Group: "front"' in lines
    assert '  +/- Task: "server"' in lines
    assert '    +/- Driver: "exec" => "docker"' in lines
    assert '+   Task Group: "new"' in lines
    assert '-   Task Group: "gone"' in lines
    at = lines.index("  +/- EphemeralDisk {")
    assert lines[at + 1 : at + 3] == ['    +/- SizeMB: "100" => "200"', "      }"]


def test_what_did_not_change_is_shown_when_asked_for() -> None:
    old = a_job(TaskGroup(name="front", ephemeral_disk=EphemeralDisk(size_mb=100)))
    new = a_job(TaskGroup(name="front", ephemeral_disk=EphemeralDisk(size_mb=200)))
    brief = list(diff_lines(diff_jobs(old, new), verbose=False))
    whole = list(diff_lines(diff_jobs(old, new), verbose=True))

    assert len(whole) > len(brief)
    assert any(line.strip() == 'Sticky:  "false"' for line in whole)
