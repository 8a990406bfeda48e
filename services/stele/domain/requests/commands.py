"""What may be asked of requests that are there already."""

from typing import ClassVar

from stele.domain.base import Command


class Cancel(Command, frozen=True, tag="cancel"):
    """Undo a request that is pending, or running before its point of no return."""

    target: str


class RejectRequest(Command, frozen=True, tag="reject_request"):
    """The coordinator of ``term`` ends a pending request that cannot be carried out."""

    of_services: ClassVar = True

    term: int
    target: str
    why: str


RequestsCommand = Cancel | RejectRequest
