"""The document names every path and type of the coordinator's answers."""

import msgspec

from stele.coordinator.http import openapi
from stele.runtime.answers.plans import PlanAnswer, PlanRequest


def _names(node: object) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"].rpartition("/")[2]} if "$ref" in node else set[str]()
        return own.union(*map(_names, node.values()))
    return set[str]().union(*map(_names, node)) if isinstance(node, list) else set()


def test_every_name_in_the_document_is_described() -> None:
    document = msgspec.json.decode(msgspec.json.encode(openapi()))
    described = document["components"]["schemas"]
    assert _names(document) <= {*described}
    assert {*described["PlanAnswer"]["properties"]} == {*PlanAnswer.__struct_fields__}
    assert {*described["PlanRequest"]["properties"]} == {*PlanRequest.__struct_fields__}
    assert {"/v1/progress", "/v1/plan", "/v1/position", "/healthz"} == {*document["paths"]}


def test_plan_documents_each_refusal() -> None:
    responses = openapi()["paths"]["/v1/plan"]["post"]["responses"]
    assert {*responses} == {"200", "400", "409", "412", "413", "503"}
