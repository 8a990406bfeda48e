"""``decide(image, envelope, at_ms)``: the facts that a command makes true, or why it is refused.

One function for each command, found in the registry; nothing is written here, and the same input gives the same
answer everywhere. ``at_ms`` is the writer's clock: it goes into fields that are shown to people, and CDC
generations hold, and are forgotten, by it.
"""

from collections.abc import Set

from stele.domain.base import Rejection
from stele.domain.cluster.facts import FoundCluster
from stele.domain.commands import MAX_TEXT_CHARS, Envelope, command_name
from stele.domain.context import Context, Decision, WorkedOut
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.registry import DECISIONS, KNOWN_FEATURES, required_features, used_features
from stele.domain.snapshot import content_hash


def decide(
    image: Image,
    envelope: Envelope,
    at_ms: int,
    worked_out: WorkedOut | None = None,
    supported: Set[str] | None = None,
) -> Decision:
    """Facts for the epoch after ``image``, or a rejection with a code, a sentence and a hint.

    ``worked_out`` is what came of an earlier decision on the same command and the same state but for its epoch.
    ``supported`` are the features that the process supports which decides; None: those that this build knows.
    """
    refused = _check_envelope(image, envelope)
    if refused is not None:
        return refused
    decision: Decision = DECISIONS[type(envelope.command)](
        Context(image, envelope, at_ms, apply_facts, content_hash, worked_out or WorkedOut()),
        envelope.command,
    )
    if isinstance(decision, Rejection):
        return decision
    known = KNOWN_FEATURES if supported is None else supported
    return _check_features(image, decision, known) or decision


def _check_features(
    image: Image, facts: tuple[AnyFact, ...], supported: Set[str]
) -> Rejection | None:
    """What needs a feature that is off would stop every reader that does not know it; the writer reads too."""
    required = required_features(facts)
    if not required:
        return None
    unknown = sorted({*required} - supported)
    if unknown:
        return Rejection(
            "unknown_feature",
            f"The metadata-log that decides does not know {', '.join(unknown)}.",
            "Check the name, or upgrade every metadata-log first.",
            {"features": ",".join(unknown)},
        )
    lacking = sorted({*used_features(facts)} - {*image.features.enabled})
    if not lacking:
        return None
    return Rejection(
        "feature_not_enabled",
        f"This needs {', '.join(lacking)}, which the cluster has not enabled.",
        f"Upgrade every node and service, then enable it: `stele features enable {' '.join(lacking)}`.",
        {"features": ",".join(lacking)},
    )


def _check_envelope(image: Image, envelope: Envelope) -> Rejection | None:
    for name in ("actor", "reason", "origin"):
        if len(getattr(envelope, name)) > MAX_TEXT_CHARS:
            return Rejection(
                "text_too_long",
                f"'{name}' has more than {MAX_TEXT_CHARS} characters.",
                "Shorten it; put long texts where you can link to them.",
            )
    if not image.cluster and not isinstance(envelope.command, FoundCluster):
        return Rejection(
            "not_founded",
            f"There is no cluster in the log, so '{command_name(envelope.command)}' was not decided.",
            "Run `stele found` once; if there was a cluster, look whether the right topic is there.",
        )
    return None
