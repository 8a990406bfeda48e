"""Refusals that every command of the coordinator may receive."""

from stele.domain.base import Rejection
from stele.domain.context import unknown_request
from stele.domain.image import Image
from stele.domain.requests.model import Request


def check_term(image: Image, term: int) -> Rejection | None:
    current = image.topology.coordinator
    if term == current.term:
        return None
    return Rejection(
        "stale_term",
        f"Term {term} is not the current term {current.term}, held by '{current.holder}'.",
        "A coordinator that reads this has been replaced and must stop.",
        {"term": str(current.term), "holder": current.holder},
    )


def request_in_term(image: Image, term: int, target: str) -> Request | Rejection:
    """Return the request for a step of the coordinator of ``term``, or a refusal."""
    request = image.request(target)
    if request is None:
        return unknown_request(target)
    return check_term(image, term) or request


def check_fenced(image: Image) -> Rejection | None:
    topology = image.topology
    if topology.settled():
        return None
    return Rejection(
        "not_fenced",
        f"Version {topology.version} is in use, but the fence is at {topology.fence_version}.",
        "Wait for the barrier and advance the fence first.",
        {"version": str(topology.version), "fence_version": str(topology.fence_version)},
    )


def overtaken(image: Image, why: str = "") -> Rejection:
    topology = image.topology
    return Rejection(
        "overtaken",
        why or "The topology has moved on since this step was planned.",
        "Read the newest state and plan again.",
        {"version": str(topology.version), "fence_version": str(topology.fence_version)},
    )
