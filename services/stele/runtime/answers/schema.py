"""The answer of ``/v1/schema`` for an image."""

from stele.domain.ddl.schema import DOMAIN
from stele.domain.image import Image
from stele.runtime.answers.metadata_log import SchemaAnswer


def schema_answer(image: Image) -> SchemaAnswer:
    """Return all objects of the schema, in the order of the domain's view."""
    found = DOMAIN.view(image.schema)
    rows = {name: found[name] for name in SchemaAnswer.__struct_fields__ if name in found}
    return SchemaAnswer(epoch=image.epoch, state_id=image.state_id.hex(), **rows)
