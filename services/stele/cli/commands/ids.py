"""``stele id``."""

from __future__ import annotations

from stele.cli.output import console
from stele.runtime.request_ids import new_request_id


def make_id() -> None:
    """Print a new request id: a UUID of version 7. It has one outcome, however often it is sent."""
    console().print(new_request_id(), soft_wrap=True, highlight=False)
