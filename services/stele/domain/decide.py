"""``decide(image, envelope, at_ms)``: the facts of a command, or the reason for its rejection.

The registry has one function for each command. They write nothing, and equal input gives equal
answers everywhere. ``at_ms`` is the writer's clock. It is used in fields that people see, and for
the times at which CDC generations hold and are forgotten.
"""

from collections.abc import Set

from stele.domain.base import Rejected, Rejection, required
from stele.domain.commands import MAX_TEXT_CHARS, Envelope, command_name
from stele.domain.context import Context, Decision, DecisionCache
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.cluster import FoundCluster
from stele.domain.registry import DECISIONS, KNOWN_FEATURES, features_of
from stele.domain.snapshot import content_hash


def decide(
    image: Image,
    envelope: Envelope,
    at_ms: int,
    cache: DecisionCache | None = None,
    supported: Set[str] | None = None,
) -> Decision:
    """Return the facts for the epoch after ``image``, or a rejection.

    ``cache`` has the results of an earlier decision on the same command and the same state at
    another epoch. ``supported`` are the features of the deciding process; None means those of this
    build.
    """
    context = Context(image, envelope, at_ms, apply_facts, content_hash, cache or DecisionCache())
    try:
        required(_check_envelope(image, envelope))
        decision: Decision = DECISIONS[type(envelope.command)](context, envelope.command)
        facts = required(decision)
    except Rejected as rejected:
        return rejected.rejection
    # The needed features follow from the facts, so they are checked after the decision.
    known = KNOWN_FEATURES if supported is None else supported
    return _check_features(image, facts, known) or facts


def _check_features(
    image: Image, facts: tuple[AnyFact, ...], supported: Set[str]
) -> Rejection | None:
    """Reject facts that need a disabled feature.

    They would stop every reader without it, the writer too.
    """
    features = features_of(facts)
    # This process reads the record too. It must not write a record that would stop itself.
    unknown = sorted({*features.required} - supported)
    if unknown:
        return Rejection(
            "unknown_feature",
            f"The metadata-log that decides does not know {', '.join(unknown)}.",
            "Check the name, or upgrade every metadata-log first.",
            {"features": ",".join(unknown)},
        )
    lacking = sorted({*features.used} - {*image.features.enabled})
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
