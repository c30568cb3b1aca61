"""One command in several regions: all answers beside one another, and an exit code that says whether they are all."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from fedsched.cli.command import COMMANDS
from fedsched.model.errors import DeadlineExceeded, Unavailable
from fedsched.model.summary import job_stub
from fedsched.rpc.methods.job import JOB_GET, JOB_LIST, JobGetReply, JobListReply
from fedsched.rpc.methods.server import REGION_LIST, RegionListReply, RegionRow
from fedsched.verbs.fan_out import AT_ONCE, in_each, run_in_several
from fedsched.verbs.table import all_verbs
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import Regions, Verb
from tests.verbs.commands import Seen, fedsched
from tests.verbs.scenes import a_job


class Gone(Unavailable):
    """As a server says of a region that nobody answers for: nothing to wait for."""

    code = "rejected"


JOBS: Mapping[str, tuple[str, ...]] = {"eu": ("web", "db"), "us": ("web",), "asia": ()}


def jobs(request: Any, context: Any) -> JobListReply:
    region = context.meta.region
    if region not in JOBS:
        raise Gone(f"No path to region {region!r}", hint="known regions: asia, eu, us")
    found = [name for name in JOBS[region] if name.startswith(request.prefix)]
    return JobListReply(jobs=tuple(job_stub(a_job(name), None) for name in found))


def a_terminal(**environ: str) -> Terminal:
    return Terminal(io.StringIO(), io.StringIO(), io.StringIO(), environ)


def regions(*names: str) -> Any:
    return lambda _: RegionListReply(regions=tuple(RegionRow(name=name) for name in names))


def one_job(request: Any, context: Any) -> JobGetReply:
    return JobGetReply(job=a_job(request.job_id, region=context.meta.region))


def run(line: str, known: tuple[str, ...] = ("asia", "eu", "us"), **options: Any) -> Seen:
    return fedsched(line, {JOB_LIST: jobs, JOB_GET: one_job, REGION_LIST: regions(*known)}, **options)


def test_a_list_of_several_regions_is_one_table_in_the_order_they_were_named() -> None:
    seen = run("job status -region us,eu,us")

    assert [line.split()[:3] for line in seen.out.splitlines()] == [
        ["Region", "ID", "Type"],
        ["us", "web", "service"],
        ["eu", "web", "service"],
        ["eu", "db", "service"],
    ]
    assert (seen.code, seen.err) == (0, "")


def test_a_star_is_all_regions_that_the_agent_knows() -> None:
    seen = run("job status -region '*'")

    assert [line.split()[0] for line in seen.out.splitlines()] == ["Region", "asia", "eu", "eu", "us"]
    assert "asia    No running jobs\n" in seen.out
    assert {meta.region for meta in seen.agent.metas(JOB_LIST)} == {"asia", "eu", "us"}
    assert [meta.region for meta in seen.agent.metas(REGION_LIST)] == [""]


def test_a_region_that_does_not_answer_is_a_row_and_exit_code_2() -> None:
    seen = run("job status -region eu,mars,us")

    assert seen.out.splitlines()[3] == "mars    Error: No path to region 'mars'"
    assert len(seen.out.splitlines()) == 5
    assert seen.err == "1 of 3 regions did not answer: mars\n"
    assert seen.code == 2


def test_no_answer_at_all_is_exit_code_1_with_every_reason() -> None:
    seen = run("job status -region mars,venus")

    assert (seen.code, seen.out) == (1, "")
    assert "Error: region mars: No path to region 'mars'\n  known regions: asia, eu, us\n" in seen.err
    assert "Error: region venus: No path to region 'venus'\n" in seen.err


def test_what_all_regions_say_is_said_once() -> None:
    seen = run("job status -region eu,us,asia nowhere")

    assert seen.err.startswith('Error: No job(s) with prefix or id "nowhere" found\n')
    assert (seen.code, seen.out) == (1, "")


def test_an_agent_that_is_not_there_is_said_once() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        seen = run(f"job status -region eu,us -address http://127.0.0.1:{taken.getsockname()[1]}")

    assert (seen.code, seen.out, seen.err.count("Error: ")) == (1, "", 1)


def test_details_come_in_blocks_and_a_region_that_has_no_such_thing_has_answered() -> None:
    seen = run("job status -short -region asia,eu,us db")

    blocks = seen.out.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ['Region: "asia"', 'Region: "eu"', 'Region: "us"']
    assert blocks[0].splitlines()[1] == 'No job(s) with prefix or id "db" found'
    assert blocks[1].splitlines()[1] == "ID            = db"
    assert (seen.code, seen.err) == (0, "")


def test_programs_get_an_entry_per_region_with_the_answer_or_the_error() -> None:
    seen = run("job status -json -region us,mars,asia")

    found = json.loads(seen.out)
    assert list(found) == ["us", "mars", "asia"]
    assert [one["ID"] for one in found["us"]["Answer"]] == ["web"]
    assert found["asia"] == {"Answer": []}
    assert found["mars"] == {
        "Error": {"Code": "rejected", "Message": "No path to region 'mars'", "Hint": "known regions: asia, eu, us"}
    }
    assert seen.code == 2


def test_programs_get_the_errors_even_if_nobody_answers() -> None:
    seen = run("job status -json -region mars,venus")

    assert {name: one["Error"]["Code"] for name, one in json.loads(seen.out).items()} == {
        "mars": "rejected",
        "venus": "rejected",
    }
    assert seen.code == 1


def test_programs_get_an_entry_per_region_even_if_all_say_the_same() -> None:
    seen = run("job status -json -region eu,us nowhere")

    assert [one["Error"]["Code"] for one in json.loads(seen.out).values()] == ["not_found", "not_found"]
    assert (seen.code, seen.err) == (1, "")


def test_a_template_formats_what_json_prints() -> None:
    seen = run("job status -region eu,us -t '{{range .}}{{range .Answer}}{{.ID}} {{end}}{{end}}'")

    assert seen.out == "web db web \n"


def test_what_is_only_ever_shown_as_json_is_one_object_of_all_regions() -> None:
    seen = run("job inspect -region eu,us web")

    found = json.loads(seen.out)
    assert {name: one["Answer"]["Job"]["Region"] for name, one in found.items()} == {"eu": "eu", "us": "us"}


def test_the_variable_names_regions_as_the_flag_does() -> None:
    seen = run("job status", environ={"NOMAD_REGION": "eu, us"})

    assert [line.split()[0] for line in seen.out.splitlines()] == ["Region", "eu", "eu", "us"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("job stop web -region eu,us", "`job stop` is for one region, not for 'eu,us'"),
        ("alloc logs -region '*' a3d1", "`alloc logs` is for one region, not for '*'"),
        ("deployment status -monitor -region eu,us 51c9", "-monitor is for one region, not for 'eu,us'"),
        ("node status -self -region eu,us", "-self is for one region, not for 'eu,us'"),
        ("job status -region eu,,us", "-region 'eu,,us' has an empty name"),
        ("job status -region eu,us -json -t x", "Both json and template formatting are not allowed"),
    ],
)
def test_what_cannot_be_done_in_several_regions_is_refused_before_anything_is_asked(line: str, message: str) -> None:
    seen = run(line)

    assert seen.err.startswith(f"Error: {message}\n")
    assert (seen.code, seen.out, seen.agent.asked) == (1, "", [])


def test_a_mistake_that_only_the_verb_can_see_is_told_once() -> None:
    seen = run("eval list -filter 'Status == \"blocked\"' -job web -region eu,us")

    assert seen.err.count("Filter expression cannot be used with other filter parameters") == 1
    assert seen.err.endswith("`fedsched eval list -help` shows how it is used\n")


def test_warnings_say_which_region_they_are_of_and_the_worst_code_is_passed_on() -> None:
    def look(terminal: Any, given: Any) -> int:
        terminal.warn("it is late")
        terminal.say(terminal.region)
        return 1 if terminal.region == "us" else 0

    verb = Verb(("clock",), "", "", look, (), (), is_remote=True, regions=Regions.EACH)
    terminal = a_terminal(FEDSCHED_REGION="us,eu")

    code = run_in_several(verb, terminal, verb.parse([]))

    assert (terminal.out.getvalue(), terminal.err.getvalue()) == (  # type: ignore[attr-defined]
        "us  us\neu  eu\n",
        "us: it is late\neu: it is late\n",
    )
    assert code == 1


WRITES = ("apply", "delete", "drain", "purge", "put", "run", "stop", "fail", "promote", "gc", "restore", "exec", "logs")


def test_whatever_writes_or_follows_is_for_one_region() -> None:
    several = [verb for verb in all_verbs(COMMANDS) if verb.regions is not Regions.ONE]

    assert not [verb.name for verb in several if verb.words[-1] in WRITES]
    assert {"job status", "node status", "alloc list", "eval list", "deployment list"} <= {one.name for one in several}
    assert {"service list", "namespace list", "server members", "alloc status"} <= {one.name for one in several}
    assert all("-region eu,us" in verb.help() for verb in several)


def test_so_many_regions_are_asked_at_once_and_no_more() -> None:
    names = [f"r{number}" for number in range(AT_ONCE + 3)]
    present = threading.Semaphore(AT_ONCE)
    all_there = threading.Barrier(AT_ONCE)

    def ask(one: Any) -> str:
        assert present.acquire(blocking=False), "too many at once"
        if one.region in names[:AT_ONCE]:
            all_there.wait(10)
        present.release()
        return one.region.upper()

    assert in_each(a_terminal(), names, ask) == {name: name.upper() for name in names}


def test_a_region_that_takes_too_long_is_left_behind_with_its_error() -> None:
    forever = threading.Event()

    found = in_each(a_terminal(), ["eu", "us"], lambda one: one.region == "eu" or forever.wait(10), limit_s=0.05)

    forever.set()
    assert found["eu"] is True
    assert isinstance(found["us"], DeadlineExceeded)
    assert found["us"].message == "region 'us' was not done after 0.05 s"


def test_a_bug_in_one_region_is_not_taken_for_weather() -> None:
    def ask(one: Any) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_each(a_terminal(), ["eu"], ask)
