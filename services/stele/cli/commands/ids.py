"""``stele id``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter, validators

from stele.cli.output import console
from stele.domain.requests.ids import NEWEST_MS
from stele.runtime.request_ids import new_request_id


def make_id(
    *, after: Annotated[int, Parameter(validator=validators.Number(gte=-1, lt=NEWEST_MS))] = -1
) -> None:
    """Print a new request id: a UUID of version 7. It has one outcome, however often it is sent.

    Parameters
    ----------
    after
        Milliseconds since 1970 that its time comes after, as the refusal of an id that was too old says.
    """
    console().print(new_request_id(horizon_ms=after), soft_wrap=True, highlight=False)
