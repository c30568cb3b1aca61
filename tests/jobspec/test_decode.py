"""From blocks to a job: names, values, labels, what is inherited; and that mistakes are told with their places."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.jobspec.jobfile import check, load_job, parse_job, parse_tree
from fedsched.jobspec.problems import JobfileProblems


def in_job(text: str) -> str:
    return f'job "j" {{\n{text}\n}}\n'


def in_group(text: str) -> str:
    return in_job(f'group "g" {{\n{text}\n}}')


def in_task(text: str) -> str:
    return in_group(f'task "t" {{\ndriver = "exec"\n{text}\n}}')


def job_of(text: str) -> dict[str, Any]:
    return parse_tree(in_job(text))


def group_of(text: str) -> dict[str, Any]:
    group: dict[str, Any] = parse_tree(in_group(text))["TaskGroups"][0]
    return group


def task_of(text: str) -> dict[str, Any]:
    task: dict[str, Any] = parse_tree(in_task(text))["TaskGroups"][0]["Tasks"][0]
    return task


def complaints(text: str) -> list[str]:
    """What is wrong, each as `line: words`."""
    return [f"{problem.span.first.line}: {problem.message}" for problem in check(text).problems if problem.span]


class TestNames:
    def test_an_unknown_attribute_is_named_with_the_one_that_was_meant(self) -> None:
        (found,) = complaints(in_task('usr = "u"'))

        assert found == "5: Unsupported argument: 'task' has no attribute 'usr'. Did you mean 'user'?"

    def test_a_block_written_as_attribute_is_told_apart(self) -> None:
        (found,) = complaints(in_task("resources = 5"))

        assert found == "5: Unsupported argument: 'resources' is a block: write it without the equals sign."

    def test_an_attribute_written_as_block_is_told_apart(self) -> None:
        assert complaints(in_group('count {\n}\ntask "t" {\ndriver = "x"\n}')) == [
            "3: Unsupported block type: 'count' is an attribute: write it with an equals sign."
        ]

    def test_a_misspelt_block_is_read_as_the_one_that_was_meant(self) -> None:
        """So that what is wrong inside of it is told at once."""
        assert complaints(in_task("resorces {\ncpu = 0\n}")) == [
            "5: Unsupported block type: 'task' has no block 'resorces'. Did you mean 'resources'?",
            '6: group "g", task "t": minimum CPU value is 1; got 0',
        ]

    def test_blocks_of_own_names_hold_no_blocks(self) -> None:
        assert complaints(in_task("env {\ninner {\n}\n}")) == [
            "6: Unsupported block type: 'env' holds only name = value."
        ]


class TestValues:
    def test_null_is_as_good_as_unsaid_where_zero_differs_from_absent(self) -> None:
        assert "Count" not in group_of("count = null")
        assert "Policies" not in task_of("vault {\npolicies = null\n}")["Vault"]

    @pytest.mark.parametrize(
        "text",
        [
            in_task("user = null"),
            in_task("kill_timeout = null"),
            in_task("env {\nA = null\n}"),
            in_group("service {\nname = null\n}"),
            in_task("lifecycle {\nhook = null\n}"),
        ],
    )
    def test_null_is_refused_where_it_could_mean_nothing(self, text: str) -> None:
        with pytest.raises(JobfileProblems, match="null"):
            parse_tree(text)

    @pytest.mark.parametrize(
        ("text", "nanoseconds"),
        [('"0"', 0), ('".5s"', 500_000_000), ('"+10m"', 600 * 10**9), ('"-1s"', -(10**9)), ("1500", 1500)],
    )
    def test_durations_are_text_or_whole_nanoseconds(self, text: str, nanoseconds: int) -> None:
        assert task_of(f"kill_timeout = {text}")["KillTimeout"] == nanoseconds

    @pytest.mark.parametrize("text", ['"5"', '"1d"', '""', "1.5", "null", "true", "[]"])
    def test_other_durations_are_refused(self, text: str) -> None:
        with pytest.raises(JobfileProblems):
            parse_tree(in_task(f"kill_timeout = {text}"))

    def test_numbers_have_bounds(self) -> None:
        with pytest.raises(JobfileProblems, match="between -100 and 100"):
            parse_tree(in_job("affinity {\nweight = 101\n}"))


class TestBlocks:
    def test_meta_and_env_may_be_attributes(self) -> None:
        assert job_of("meta = { a = 1 }")["Meta"] == {"a": "1"}
        assert group_of("meta = { a = 1 }")["Meta"] == {"a": "1"}
        assert task_of("env = { A = true }")["Env"] == {"A": "true"}

    @pytest.mark.parametrize(
        "text", ["config = {}", "restart = {}", "service {\nmeta = {}\n}", "artifact {\nheaders = {}\n}"]
    )
    def test_nothing_else_may(self, text: str) -> None:
        with pytest.raises(JobfileProblems, match="is a block"):
            parse_tree(in_task(text))

    def test_a_second_block_names_the_first(self) -> None:
        assert complaints(in_task("resources {\n}\nresources {\n}")) == [
            "7: Duplicate resources block: 'resources' may be given once. The first is at job.hcl:5:1."
        ]

    def test_a_lone_task_becomes_a_group_before_the_others(self) -> None:
        text = 'group "a" {\ntask "x" {\ndriver = "exec"\n}\n}\ntask "solo" {\ndriver = "exec"\n}'

        assert [group["Name"] for group in job_of(text)["TaskGroups"]] == ["solo", "a"]

    def test_the_nearest_vault_counts_and_secrets_add_up(self) -> None:
        text = (
            'vault {\nrole = "job"\n}\nsecret "a" {\n}\n'
            'group "g" {\nsecret "b" {\n}\n'
            'task "own" {\nvault {\nrole = "own"\n}\nsecret "c" {\n}\n}\n'
            'task "not" {\n}\n}'
        )

        own, inherits = job_of(text)["TaskGroups"][0]["Tasks"]

        assert (own["Vault"]["Role"], inherits["Vault"]["Role"]) == ("own", "job")
        assert [secret["Name"] for secret in own["Secrets"]] == ["c", "b", "a"]
        assert [secret["Name"] for secret in inherits["Secrets"]] == ["b", "a"]

    def test_a_volume_is_known_by_its_label(self) -> None:
        volume = group_of('volume "data" {\ntype = "host"\nsource = "d"\n}')["Volumes"]["data"]

        assert volume == {"Name": "data", "Type": "host", "Source": "d"}

    def test_a_task_scales_by_cpu_or_memory(self) -> None:
        assert task_of('scaling "MEM" {\nmax = 9\n}')["ScalingPolicies"] == [{"Max": 9, "Type": "vertical_mem"}]


class TestDriverConfig:
    """Kept as plain data, in the form that drivers have always been given."""

    def test_a_block_is_a_list_of_maps_and_a_label_one_more_level(self) -> None:
        config = task_of('config {\nmount {\na = 1\n}\nmount "x" "y" {\n}\n}')["Config"]

        assert config == {"mount": [{"a": 1}, {"x": [{"y": [{}]}]}]}

    def test_an_object_is_treated_as_a_block_only_where_it_is_written_out(self) -> None:
        config = task_of("config {\na = {}\nb = ({})\nc = merge({ x = 1 }, {})\nd = [{}]\n}")["Config"]

        assert config == {"a": [{}], "b": {}, "c": {"x": 1}, "d": [{}]}

    def test_integers_of_64_bits_stay_integers(self) -> None:
        config = task_of("config {\na = 9223372036854775807\nb = 9223372036854775808\nc = null\n}")["Config"]

        assert config == {"a": 9223372036854775807, "b": 9.223372036854775808e18}
        assert isinstance(config["a"], int)

    def test_dynamic_is_a_name_like_any_other(self) -> None:
        config = task_of('config {\ndynamic "x" {\nfor_each = [1]\n}\n}')["Config"]

        assert config == {"dynamic": [{"x": [{"for_each": [1]}]}]}

    def test_a_name_is_an_attribute_or_a_block(self) -> None:
        assert complaints(in_task("config {\na = 1\na {\n}\n}")) == [
            "7: Attribute and block of one name: 'a' is an attribute already"
        ]

    def test_infinity_is_refused_where_it_stands(self) -> None:
        assert complaints(in_task("config {\na = [{ b = 1 / 0 }]\n}")) == [
            "6: Unsuitable value: 'a' holds an infinite number, which no driver can be told"
        ]

    def test_what_is_nested_too_deeply_to_be_kept_is_refused(self) -> None:
        deep = "".join(f"a{i} {{\n" for i in range(36)) + "x = local.a\n" + "}\n" * 36
        text = in_task(f"config {{\n{deep}}}") + f"locals {{\na = {'[' * 30}{']' * 30}\n}}\n"

        (found,) = check(text).problems

        assert "nested" in found.message

    def test_what_cannot_be_evaluated_is_told_and_the_rest_is_read(self) -> None:
        assert len(complaints(in_task("config {\na = upper()\nb = nope()\n}"))) == 2


class TestConstraints:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('attribute = "a"\nvalue = "b"', ("a", "=", "b")),
            ('attribute = "a"\noperator = "is_set"', ("a", "is_set", "")),
            ('attribute = "a"\nis_set = true', ("a", "is_set", "")),
            ('attribute = "a"\nis_not_set = true', ("a", "is_not_set", "")),
            ('attribute = "a"\nis_set = false', ("a", "=", "")),
            ('attribute = "a"\nset_contains_any = "x,y"', ("a", "set_contains_any", "x,y")),
            ('attribute = "a"\nset_contains_all = "x,y"', ("a", "set_contains_all", "x,y")),
            ('attribute = "a"\nversion = ""\nregexp = "x"', ("a", "regexp", "x")),
            ('attribute = "a"\nregexp = "x"\nversion = "1"', ("a", "regexp", "x")),
            ("distinct_hosts = false", ("", "distinct_hosts", "false")),
            ('distinct_property = "p"\nvalue = 2', ("p", "distinct_property", "2")),
        ],
    )
    def test_short_forms(self, text: str, expected: tuple[str, str, str]) -> None:
        (found,) = job_of(f"constraint {{\n{text}\n}}")["Constraints"]

        assert (found.get("LTarget", ""), found["Operand"], found.get("RTarget", "")) == expected

    def test_a_problem_of_a_short_form_is_placed_at_it(self) -> None:
        text = in_job('constraint {\nattribute = "${attr.x}"\nregexp = "("\n}\ntask "t" {\ndriver = "x"\n}')

        assert complaints(text) == [
            "4: Regular expression failed to compile: error parsing regexp: missing closing ): `(`"
        ]


class TestWholeJob:
    """The checks that servers make, told with the lines of the file."""

    def test_ports_are_found_wherever_they_went(self) -> None:
        text = in_group(
            'network {\nport "a" {\n}\nport "b" {\nstatic = 80\n}\nport "c" {\nstatic = 80\n}\n}\n'
            'task "t" {\ndriver = "x"\n}'
        )

        assert complaints(text) == ['10: group "g": Static port 80 already reserved by b']

    def test_what_is_missing_is_told_at_the_block(self) -> None:
        assert complaints(in_group('task "t" {\n}')) == [
            '3: group "g", task "t": Missing task driver: such as driver = "exec"'
        ]

    def test_what_follows_from_a_mistake_is_not_told_again(self) -> None:
        assert len(complaints(in_group('task "t" {\ndriver = []\n}'))) == 1
        assert len(complaints(in_group('task {\ndriver = "x"\n}'))) == 1
        assert len(complaints(in_job('constraint {\nattribute = []\n}\ntask "t" {\ndriver = "x"\n}'))) == 1
        assert len(complaints(in_task('scaling "disk" {\nmax = 1\n}'))) == 1

    def test_a_missing_job_name_is_told_once(self) -> None:
        assert complaints('job {\ntask "t" {\ndriver = "x"\n}\n}\n') == [
            '1: Missing name for job: write job "name" { ... }.'
        ]

    def test_problems_come_in_the_order_of_the_file(self) -> None:
        text = in_job('priority = 500\ntpye = "batch"\ntask "t" {\ncofig {\n}\n}')

        assert [line.split(":")[0] for line in complaints(text)] == ["2", "3", "4", "5"]

    def test_a_hostile_number_of_problems_is_cut(self) -> None:
        text = in_job("\n".join(f"x{i} = 1" for i in range(2000)))

        assert len(check(text).problems) == 50

    def test_a_policy_of_the_job_is_told_once_and_where_it_stands(self) -> None:
        tasks = 'task "a" {\ndriver = "x"\n}\ntask "b" {\ndriver = "x"\n}'

        assert complaints(in_job(f'reschedule {{\ndelay = "1s"\n}}\n{tasks}')) == [
            "3: Delay cannot be less than 5s (got 1s)"
        ]

    def test_what_a_group_says_itself_is_told_there(self) -> None:
        text = in_job('update {\ncanary = -1\n}\ngroup "g" {\nupdate {\ncanary = -2\n}\ntask "t" {\ndriver = "x"\n}\n}')

        assert complaints(text) == ['7: group "g": Canary count can not be less than zero: -2 < 0']

    def test_volumes_and_mounts_are_placed(self) -> None:
        text = in_group('volume "v" {\ntype = "host"\n}\ntask "t" {\ndriver = "x"\nvolume_mount {\nvolume = "w"\n}\n}')

        assert [line.split(":")[0] for line in complaints(text)] == ["3", "8", "9"]


class TestFronts:
    def test_a_good_job_is_loaded(self) -> None:
        job = load_job(in_task("resources {\ncpu = 5\n}"))

        assert job.task_groups[0].tasks[0].resources.cpu == 5

    def test_a_bad_job_is_refused_with_all_problems(self) -> None:
        with pytest.raises(JobfileProblems) as caught:
            load_job(in_group("count = -1"))

        assert len(caught.value.problems) == 2

    def test_a_text_that_was_sent_becomes_a_job(self) -> None:
        assert parse_job(in_task("")).datacenters == ()
        assert parse_job(in_task(""), canonicalize=True).datacenters == ("*",)

    def test_chance_is_handed_in(self) -> None:
        text = in_job("meta {\nid = uuidv4()\n}")

        assert parse_tree(text, entropy=bytes)["Meta"]["id"] == "00000000-0000-4000-8000-000000000000"
        with pytest.raises(JobfileProblems):
            parse_tree(text)

    def test_a_job_may_be_called_id(self) -> None:
        assert parse_tree('{"job": {"id": {"priority": 5}}}')["ID"] == "id"
        assert check('{"job": {"id": {"task": {"t": {"driver": "exec"}}}}}').problems == ()

    def test_a_job_in_the_apis_form_is_checked_by_its_paths(self) -> None:
        checked = check('{"Job": {"ID": "a b", "TaskGroups": [], "Bogus": 1}}', "a.json")

        assert [str(problem) for problem in checked.problems] == [
            'ID: Job ID contains a space: "a-b" would do',
            "TaskGroups: Missing job task groups: a job runs what its groups say",
        ]
        assert checked.unknown == ("Job.Bogus",)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"Job": {"ID": 5}}', "Unsuitable value: a.json: Job.ID: expected string, got integer 5"),
            ("[" * 100_000, "Invalid JSON: a.json: nested too deeply, or a number too long"),
            ("[]", 'Missing job: a.json is no JSON object with a job: write {"Job": {"ID": ...}}.'),
            ('{"Job"', "Invalid JSON: a.json: line 1, column 7: Expecting ':' delimiter"),
            (" " * (1 << 21), "Too large to evaluate: a.json has 2097152 characters, at most 1048576 are read"),
        ],
    )
    def test_a_wrong_file_in_the_apis_form_is_explained(self, text: str, message: str) -> None:
        (found,) = check(text, "a.json", is_api_json=True).problems

        assert str(found) == message
