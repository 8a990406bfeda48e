"""The answer of ``/v1/topology`` for an image."""

from stele.domain.image import Image
from stele.domain.topology.decide import summary_of, versions_of
from stele.runtime.answers.metadata_log import TopologyAnswer


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
