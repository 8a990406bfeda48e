"""Enable features when every member has acknowledged an epoch of the request or later.

A node declares the features that it supports before it acknowledges anything. So a member that was
restarted with an older build is not overlooked. The operation changes no placements, and ends with
the epoch that enables the features.

Source: ScyllaDB, pull request #15196, "Cluster features on raft".
"""

from typing import Final

from stele.domain.context import Context, Decision
from stele.domain.model.operations import EnableFeatures
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.rules.features import check_supported
from stele.domain.rules.requests import ended, new_request
from stele.domain.topology.operations.base import (
    Operation,
    no_sets,
    nobody,
)


def enable_features(context: Context, command: EnableFeatures) -> Decision:
    """Queue the request; it is done at once when there is nothing left to enable."""
    image = context.image
    refused = check_supported(image, command.features)
    if refused is not None:
        return refused
    fresh = tuple(sorted({*command.features} - {*image.features.enabled}))
    asked = new_request(context, RequestKind.ENABLE_FEATURES, features=fresh)
    if fresh:
        return (asked,)
    return ended(context, image, asked.request, RequestStatus.DONE, "")


ENABLE_FEATURES: Final = Operation(
    kind=RequestKind.ENABLE_FEATURES,
    command=EnableFeatures,
    ask=enable_features,
    priority=0,
    asks_all=True,
    needed=nobody,
    touched=no_sets,
)
