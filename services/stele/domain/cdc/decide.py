"""When a CDC generation is published, and when it may be forgotten.

Publishing is a fact of the log and nothing else: whoever reads the log has the generation already, be it over
HTTP at any epoch, as a stream, in Spark or in a node. A topic of descriptions would be a second truth that has
to be kept in step with it.
"""

from stele.domain.base import Rejection
from stele.domain.cdc.commands import ForgetCdcGeneration, PublishCdcGeneration
from stele.domain.cdc.facts import CdcGenerationForgotten, CdcGenerationPublished
from stele.domain.cdc.limits import CDC_RETENTION_S
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.topology.guards import check_term, overtaken


def publish_cdc_generation(context: Context, command: PublishCdcGeneration) -> Decision:
    """The oldest first, so that readers never see a gap."""
    image = context.image
    refused = check_term(image, command.term)
    if refused is not None:
        return refused
    due = to_publish(image)
    if due != command.generation_id:
        return overtaken(image, f"Generation {due or 'none'} is the next one to be published.")
    return (CdcGenerationPublished(command.generation_id),)


def forget_cdc_generation(context: Context, command: ForgetCdcGeneration) -> Decision:
    image = context.image
    refused = check_term(image, command.term)
    if refused is not None:
        return refused
    if command.generation_id not in to_forget(image, context.at_ms):
        return Rejection(
            "cdc_generation_in_use",
            f"Generation {command.generation_id[:80]} is not there, or not over by the log's clock.",
            f"Nothing is to be done: it goes {CDC_RETENTION_S.name} after the next one has come to hold.",
        )
    return (CdcGenerationForgotten(command.generation_id),)


def to_publish(image: Image) -> str:
    """The oldest committed generation that is not published, once the version that it came with is fenced:
    who answered that barrier knows of it. Empty: none.
    """
    topology = image.topology
    oldest = next(iter(image.cdc.unpublished()), None)
    if oldest is None:
        return ""
    fenced = topology.settled() or topology.since_epoch > oldest.committed_epoch
    return oldest.generation_id if fenced else ""


def to_forget(image: Image, now_ms: int) -> list[str]:
    """Generations whose successor has held for longer than the retention, the oldest first."""
    retention_s = CDC_RETENTION_S.of(image.features.settings)
    return [generation.generation_id for generation in image.cdc.obsolete(now_ms, retention_s)]
