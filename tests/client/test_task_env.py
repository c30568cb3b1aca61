from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.client.hooks.hook import HookFailed
from fedsched.client.interpolate import ReferenceCycle, clean_name, interpolate, references, resolve_all
from fedsched.client.task_env import ENV_BYTES_MAX, NEVER_PASSED, VALUE_BYTES_MAX, VARIABLES_MAX, host_environment
from fedsched.client.task_env_computed import core_list
from fedsched.drivers.driver import FsIsolation
from fedsched.model.errors import BadRequest
from fedsched.model.job import ParameterizedJobConfig
from fedsched.model.network import AllocNetworkStatus, NetworkResource, Port, PortMapping
from fedsched.model.resources import (
    AllocatedCPU,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from tests.builders import a_node, a_task, an_id
from tests.client.hook_contexts import a_driver, a_task_context


def env(**fields: Any) -> dict[str, str]:
    return a_task_context(**fields).environment().values


def given_ports(*ports: PortMapping, **shared: Any) -> dict[str, Any]:
    return {"allocated_resources": AllocatedResources(shared=AllocatedSharedResources(ports=ports, **shared))}


RESOURCES = AllocatedResources(
    tasks={
        "web": AllocatedTaskResources(
            cpu=AllocatedCPU(cpu_shares=500, reserved_cores=(0, 1, 2, 5)),
            memory=AllocatedMemory(memory_mb=256, memory_max_mb=512),
        )
    }
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MEMORY_LIMIT", "256"),
        ("MEMORY_MAX_LIMIT", "512"),
        ("CPU_LIMIT", "500"),
        ("CPU_CORES", "0-2,5"),
        ("ALLOC_ID", an_id(0xABC)),
        ("SHORT_ALLOC_ID", "00000000"),
        ("ALLOC_NAME", "web.group[3]"),
        ("ALLOC_INDEX", "3"),
        ("TASK_NAME", "web"),
        ("GROUP_NAME", "group"),
        ("JOB_ID", "web"),
        ("JOB_NAME", "Web shop"),
        ("JOB_PARENT_ID", "parent"),
        ("DC", "dc7"),
        ("REGION", "earth"),
        ("NAMESPACE", "shop"),
        ("PARENT_CGROUP", "fedsched.slice"),
    ],
)
def test_what_every_task_is_told_has_both_names(name: str, value: str) -> None:
    values = env(
        job={"name": "Web shop", "parent_id": "parent", "namespace": "shop"},
        alloc_fields={"id": an_id(0xABC), "index": 3, "allocated_resources": RESOURCES},
        node=a_node(datacenter="dc7", cgroup_parent="fedsched.slice"),
    )

    assert values[f"NOMAD_{name}"] == value
    assert values[f"FEDSCHED_{name}"] == value


def test_what_was_not_given_is_not_set() -> None:
    values = env()

    for name in ("MEMORY_MAX_LIMIT", "CPU_CORES", "JOB_PARENT_ID", "PARENT_CGROUP", "TOKEN"):
        assert f"NOMAD_{name}" not in values


def test_directories_are_host_paths_without_isolation_and_inside_paths_with_it() -> None:
    plain = a_task_context()
    isolated = env(driver=a_driver(isolation=FsIsolation.CHROOT))

    assert plain.environment().values["NOMAD_ALLOC_DIR"] == str(plain.dirs.shared)
    assert plain.environment().values["NOMAD_TASK_DIR"] == str(plain.dirs.local)
    assert plain.environment().values["NOMAD_SECRETS_DIR"] == str(plain.dirs.secrets)
    assert isolated["NOMAD_ALLOC_DIR"] == "/alloc"
    assert isolated["NOMAD_TASK_DIR"] == "/local"
    assert isolated["NOMAD_SECRETS_DIR"] == "/secrets"


def test_ports_of_the_group() -> None:
    values = env(alloc_fields=given_ports(PortMapping(label="my-http", value=20001, to=80, host_ip="10.0.0.5")))

    assert values["NOMAD_IP_my_http"] == "10.0.0.5"
    assert values["NOMAD_PORT_my_http"] == "80"
    assert values["NOMAD_ADDR_my_http"] == "10.0.0.5:20001"
    assert values["NOMAD_HOST_IP_my_http"] == "10.0.0.5"
    assert values["NOMAD_HOST_PORT_my_http"] == "20001"
    assert values["NOMAD_HOST_ADDR_my_http"] == "10.0.0.5:20001"
    assert values["NOMAD_ALLOC_PORT_my_http"] == "80"
    assert "NOMAD_ALLOC_IP_my_http" not in values


def test_a_port_without_a_mapping_is_the_host_s_and_ipv6_gets_brackets() -> None:
    values = env(alloc_fields=given_ports(PortMapping(label="db", value=5432, to=-1, host_ip="::1")))

    assert values["NOMAD_PORT_db"] == "5432"
    assert values["NOMAD_ADDR_db"] == "[::1]:5432"


def test_a_network_namespace_adds_where_the_port_is_inside() -> None:
    fields = given_ports(
        PortMapping(label="http", value=20001, to=80, host_ip="10.0.0.5"), networks=(NetworkResource(mode="bridge"),)
    )
    status = AllocNetworkStatus(interface_name="eth0", address="172.26.64.2")

    values = env(alloc_fields={**fields, "network_status": status})

    assert values["NOMAD_ALLOC_INTERFACE_http"] == "eth0"
    assert values["NOMAD_ALLOC_IP_http"] == "172.26.64.2"
    assert values["NOMAD_ALLOC_ADDR_http"] == "172.26.64.2:80"


def test_networks_of_tasks_name_the_sibling_first() -> None:
    def network(port: int) -> AllocatedTaskResources:
        own = NetworkResource(ip="10.1.1.1", dynamic_ports=(Port(label="http", value=port, to=port + 1),))
        return AllocatedTaskResources(networks=(own,))

    resources = AllocatedResources(tasks={"web": network(1000), "side-car": network(2000)})
    values = env(alloc_fields={"allocated_resources": resources}, group={"more_tasks": [a_task("side-car")]})

    assert values["NOMAD_ADDR_http"] == "10.1.1.1:1000"
    assert values["NOMAD_PORT_http"] == "1001"
    assert values["NOMAD_HOST_PORT_http"] == "1000"
    assert values["NOMAD_ADDR_side_car_http"] == "10.1.1.1:2000"
    assert values["NOMAD_IP_side_car_http"] == "10.1.1.1"
    assert values["NOMAD_PORT_side_car_http"] == "2001"


def test_meta_of_the_task_beats_the_group_s_and_the_job_s_in_both_cases() -> None:
    values = env(
        job={"meta": {"color": "job", "only-job": "j", "where": "${node.datacenter} ${NOMAD_TASK_NAME}"}},
        group={"meta": {"color": "group", "size": "group"}},
        task={"meta": {"color": "task"}},
    )

    assert values["NOMAD_META_color"] == values["NOMAD_META_COLOR"] == "task"
    assert values["NOMAD_META_SIZE"] == values["FEDSCHED_META_size"] == "group"
    assert values["NOMAD_META_only_job"] == values["NOMAD_META_ONLY_JOB"] == "j"
    assert values["NOMAD_META_where"] == "dc1 web"


def test_optional_meta_of_a_dispatched_job_is_there_if_only_empty() -> None:
    config = ParameterizedJobConfig(meta_optional=("given", "missing"))

    values = env(job={"parameterized_job": config, "dispatched": True, "meta": {"given": "x"}})

    assert values["NOMAD_META_given"] == "x"
    assert values["NOMAD_META_missing"] == ""


def test_later_sources_beat_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HOST", "host")
    monkeypatch.setenv("NOMAD_ALLOC_ID", "not the agent's business")
    monkeypatch.setenv("SHARED", "host")
    task = a_task_context(
        driver=a_driver(takes_host_env=True), task={"env": {"SHARED": "task", "HOOK": "task", "TEMPLATE": "task"}}
    )
    task.hook_env = {"HOOK": "hook", "TEMPLATE": "hook", "NOMAD_TOKEN": "t"}
    task.template_env = {"TEMPLATE": "template"}

    values = task.environment().values

    assert values["FROM_HOST"] == "host"
    assert values["NOMAD_ALLOC_ID"] == task.alloc.alloc.id
    assert (values["SHARED"], values["HOOK"], values["TEMPLATE"]) == ("task", "hook", "template")
    assert values["FEDSCHED_TOKEN"] == "t"


def test_drivers_with_their_own_world_see_nothing_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HOST", "host")

    assert "FROM_HOST" not in env()


@pytest.mark.parametrize("name", NEVER_PASSED)
def test_what_opens_doors_is_never_handed_on(name: str) -> None:
    assert host_environment({name: "secret", "PATH": "/bin"}) == {"PATH": "/bin"}


def test_the_operator_denies_more_by_pattern() -> None:
    assert host_environment({"MY_KEY": "x", "MY_PATH": "y", "HOME": "z"}, ["*_KEY", "HOME"]) == {"MY_PATH": "y"}


def test_values_refer_to_node_and_environment() -> None:
    node = a_node(attributes={"kernel.name": "linux"}, meta={"rack": "r1", "odd key": "o"}, node_class="big")
    text = a_task_context(node=node, task={"env": {"A": "1"}}).environment().text

    assert text("${node.unique.id} ${node.unique.name}") == f"{an_id(1)} node-1"
    assert text("${node.datacenter} ${node.region} ${node.class} ${node.pool}") == "dc1 earth big default"
    assert text('${attr.kernel.name} ${meta.rack} ${meta["odd key"]}') == "linux r1 o"
    assert text('${env.A} ${A} ${ A } ${env["A"]} ${NOMAD_TASK_NAME}') == "1 1 1 1 web"
    assert text("${unknown} ${meta.gone} ${A:-shell} $A $${A}") == "${unknown} ${meta.gone} ${A:-shell} $A ${A}"


def test_a_label_may_be_written_as_the_job_has_it() -> None:
    task = a_task_context(alloc_fields=given_ports(PortMapping(label="my-http", value=8080, host_ip="10.0.0.5")))

    assert task.environment().text("${NOMAD_PORT_my-http}") == "8080"


def test_env_values_are_resolved_in_the_order_they_need_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin")
    values = env(
        driver=a_driver(takes_host_env=True),
        task={"env": {"C": "${env.B}!", "B": "${A}${A}", "A": "x", "PATH": "${PATH}:/opt", "M": "${nope}"}},
    )

    assert (values["A"], values["B"], values["C"]) == ("x", "xx", "xx!")
    assert values["PATH"] == "/bin:/opt"
    assert values["M"] == "${nope}"


def test_a_circle_of_values_fails_the_task_and_is_named() -> None:
    with pytest.raises(HookFailed, match="A -> B -> A") as caught:
        env(task={"env": {"A": "${B}", "B": "${env.A}"}})

    assert caught.value.event == "Failed Validation"
    assert not caught.value.is_recoverable


def test_values_that_double_again_and_again_are_refused_early() -> None:
    doubling = {f"V{number}": f"${{V{number - 1}}}" * 2 for number in range(1, 64)}

    with pytest.raises(HookFailed, match="grow beyond"):
        env(task={"env": {"V0": "xxxxxxxx", **doubling}})


def test_names_are_made_fit_and_an_exact_one_wins() -> None:
    values = env(task={"env": {"my-name": "1", "9lives": "2", "a.b": "dotted", "a_b": "exact", "x=y": "3"}})

    assert (values["my_name"], values["_lives"], values["a_b"], values["x_y"]) == ("1", "2", "exact", "3")


def test_a_driver_s_settings_must_be_complete() -> None:
    environment = a_task_context(task={"env": {"A": "1"}}).environment()

    assert environment.config({"a": ["${A}", {"b": "${A}"}], "n": 3}) == {"a": ["1", {"b": "1"}], "n": 3}
    with pytest.raises(HookFailed, match=r"config\.args\[1\] refers to nope") as caught:
        environment.config({"args": ["x", "${nope}"]})
    assert caught.value.event == "Failed Validation"


def test_settings_nested_without_end_are_refused() -> None:
    nested: Any = "x"
    for _ in range(100):
        nested = [nested]

    with pytest.raises(HookFailed, match="deeper"):
        a_task_context().environment().config(nested)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"BIG": "x" * VALUE_BYTES_MAX}, "BIG"),
        ({f"V{number}": "x" * 100_000 for number in range(11)}, "beyond 1048576 bytes"),
        ({f"V{number}": "" for number in range(VARIABLES_MAX + 1)}, "variables"),
        ({"NUL": "a\0b"}, "NUL"),
    ],
)
def test_an_environment_that_nothing_can_be_started_with_is_refused(extra: dict[str, str], message: str) -> None:
    with pytest.raises(HookFailed, match=message) as caught:
        env(task={"env": extra})

    assert caught.value.event == "Failed Validation"


def test_a_value_at_the_limit_can_really_be_started_with() -> None:
    name = "BIG"
    value = "x" * (VALUE_BYTES_MAX - len(name) - 2)

    assert env(task={"env": {name: value}})[name] == value
    assert os.spawnve(os.P_WAIT, "/bin/true", ["true"], {name: value}) == 0


def test_hooks_and_templates_count_as_well() -> None:
    task = a_task_context()
    task.template_env = {f"T{number}": "x" * 100_000 for number in range(ENV_BYTES_MAX // 100_000 + 1)}

    with pytest.raises(HookFailed, match="takes"):
        task.environment()


_NAMES = st.sampled_from(["A", "B", "C", "D", "E"])
_TEXTS = st.lists(st.one_of(_NAMES.map(lambda name: f"${{{name}}}"), st.sampled_from(["x", "-", "$", "{"])), max_size=3)


@given(st.dictionaries(_NAMES, _TEXTS.map("".join), max_size=5))
def test_resolving_ends_and_gives_the_same_in_any_order(values: dict[str, str]) -> None:
    def outcome(table: dict[str, str]) -> dict[str, str] | str:
        try:
            return resolve_all(table, lambda _: None, 1000)
        except ReferenceCycle:
            return "circle"
        except BadRequest:
            return "too large"

    first = outcome(values)
    again = outcome(dict(reversed(values.items())))

    assert first == again
    if isinstance(first, dict) and not any(f"${{{name}}}" in text or "$${" in text for name, text in values.items()):
        assert not any(set(references(text)) & set(values) for text in first.values())


def test_a_chain_as_long_as_the_table_is_no_problem() -> None:
    chain = {f"V{number}": f"${{V{number + 1}}}" for number in range(3000)} | {"V3000": "end"}

    assert resolve_all(chain, lambda _: None, 1_000_000)["V0"] == "end"


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    result, missing = interpolate(text, lambda _: None)

    assert result == text.replace("$${", "${")
    assert missing == list(references(text))


def test_names_for_processes() -> None:
    assert clean_name("a b/c.d-ü") == "a_b_c_d__"
    assert clean_name("1x") == "_x"
    assert core_list([7, 0, 1, 3]) == "0-1,3,7"
    assert core_list([]) == ""
