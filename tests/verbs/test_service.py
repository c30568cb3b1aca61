"""`service ...` as a person sees it."""

from __future__ import annotations

import json
from typing import Any

from fedsched.model.service import ServiceRegistration
from fedsched.rpc.methods import service as methods
from tests.verbs.commands import fedsched
from tests.verbs.scenes import ALLOC, NODE


def a_registration(**fields: Any) -> ServiceRegistration:
    known: dict[str, Any] = {
        "service_name": "web",
        "namespace": "default",
        "node_id": NODE,
        "job_id": "shop",
        "alloc_id": ALLOC,
    }
    known |= {"datacenter": "dc1", "tags": ("blue", "v2"), "address": "10.0.0.7", "port": 8080}
    return ServiceRegistration(**{"id": "_fedsched-1", **known, **fields})


def names(*spaces: str) -> Any:
    inside = (methods.ServiceName(service_name="web", tags=("blue",)), methods.ServiceName(service_name="db"))
    found = tuple(methods.NamespaceServices(namespace=space, services=inside) for space in spaces)
    return {methods.SERVICE_LIST: lambda _: methods.ServiceListReply(namespaces=found)}


def offered(*found: ServiceRegistration) -> Any:
    return {methods.SERVICE_GET: lambda _: methods.ServiceGetReply(services=found)}


def test_services_are_listed_with_their_tags() -> None:
    seen = fedsched("service list", names("default"))

    assert seen.out == "Service Name  Tags\nweb           [blue]\ndb            []\n"


def test_services_of_all_namespaces_say_which() -> None:
    seen = fedsched("service list -namespace *", names("default", "prod"))

    assert seen.out.splitlines()[0] == "Service Name  Namespace  Tags"
    assert "web           prod       [blue]" in seen.out


def test_a_long_list_is_asked_for_page_by_page() -> None:
    def page(request: Any) -> methods.ServiceListReply:
        one = methods.NamespaceServices(
            namespace="default", services=(methods.ServiceName(service_name=request.next_token or "first"),)
        )
        return methods.ServiceListReply(namespaces=(one,), next_token="" if request.next_token else "second")

    seen = fedsched("service list", {methods.SERVICE_LIST: page})

    assert [line.split()[0] for line in seen.out.splitlines()[1:]] == ["first", "second"]


def test_nothing_listed_says_so() -> None:
    assert fedsched("service list", names()).out == "No services found\n"


def test_a_service_shows_where_it_is_offered() -> None:
    seen = fedsched("service info -filter 'Port == 8080' web", offered(a_registration(), a_registration(address="::1")))

    assert seen.out == (
        "Job ID  Address        Tags       Node ID   Alloc ID\n"
        f"shop    10.0.0.7:8080  [blue,v2]  {NODE[:8]}  {ALLOC[:8]}\n"
        f"shop    [::1]:8080     [blue,v2]  {NODE[:8]}  {ALLOC[:8]}\n"
    )
    assert seen.agent.requests(methods.SERVICE_GET)[0].filter == "Port == 8080"


def test_a_service_in_full_shows_ids_that_delete_takes() -> None:
    seen = fedsched("service info -verbose web", offered(a_registration(), a_registration(id="other", port=0)))

    assert "ID           = _fedsched-1\n" in seen.out
    assert f"Alloc ID     = {ALLOC}\n" in seen.out
    assert "Address      = 10.0.0.7\n" in seen.out


def test_a_service_as_json_has_the_names_of_the_api() -> None:
    seen = fedsched("service info -json web", offered(a_registration()))

    assert json.loads(seen.out)[0]["ServiceName"] == "web"


def test_an_unknown_service_is_an_error_with_a_way_on() -> None:
    seen = fedsched("service info web", offered())

    assert seen.code == 1
    assert "service list" in seen.err


def test_a_registration_is_deleted_by_its_id() -> None:
    seen = fedsched("service delete web some-id", {methods.SERVICE_DELETE: lambda _: methods.ServiceWriteReply()})

    assert seen.out == "Successfully deleted service registration\n"
    assert seen.agent.requests(methods.SERVICE_DELETE) == [methods.ServiceDeleteRequest(name="web", id="some-id")]
