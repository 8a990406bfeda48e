"""Answers of ``/v1/topology`` and ``/v1/schema`` for an image."""

from stele.domain.ddl.schema import DOMAIN
from stele.domain.image import Image
from stele.domain.topology.decide import summary_of, versions_of
from stele.runtime.answers.metadata_log import SchemaAnswer, TopologyAnswer


def topology_answer(image: Image) -> TopologyAnswer:
    """Return the versions, the coordinator and the open transitions."""
    return TopologyAnswer(
        epoch=image.epoch,
        state_id=image.state_id.hex(),
        cluster=image.cluster,
        cluster_id=image.cluster_id,
        log_id=image.log_id.hex(),
        topology=versions_of(image.topology),
        coordinator=image.topology.coordinator,
        transitions=tuple(summary_of(t) for t in image.topology.open()),
        commits=image.commits,
    )


def schema_answer(image: Image) -> SchemaAnswer:
    """Return all objects of the schema, in the order of the domain's view."""
    found = DOMAIN.view_of(image.schema)
    rows = {name: found[name] for name in SchemaAnswer.__struct_fields__ if name in found}
    return SchemaAnswer(epoch=image.epoch, state_id=image.state_id.hex(), **rows)
