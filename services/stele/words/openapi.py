"""Parts of OpenAPI documents: schemas of types and commands, and answers."""

from collections.abc import Callable
from typing import Any

import msgspec

from stele.domain.commands import COMMANDS
from stele.words.operations import TEXTS

Json = dict[str, Any]
Schemas = dict[type, Json]


def schemas_of(
    types: tuple[type, ...], schema_hook: Callable[[type], Json] | None = None
) -> tuple[Schemas, Json]:
    """Return the schema of each type, and the components that the schemas refer to.

    ``schema_hook`` returns the schema of a type that msgspec does not know.
    """
    shapes, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=schema_hook
    )
    _describe_commands(components)
    return dict(zip(types, shapes, strict=True)), components


def _describe_commands(components: dict[str, Json]) -> None:
    """Describe the commands of operations, and their fields, from the table of operations."""
    names = {str(each.__struct_config__.tag): each.__name__ for each in COMMANDS}
    for text in TEXTS.values():
        component = components.get(names[text.command])
        if component is None:
            continue  # the document's service does not take this command
        component["description"] = f"{text.title}. {text.about}"
        for field in text.fields:
            shape = component["properties"].get(field.key or field.name)
            if shape is not None:  # a command may compute its fields from others
                shape["description"] = field.sentence


def response(description: str, schema: Json) -> Json:
    """Return a response with a JSON body."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def health_path(health: Json) -> Json:
    """Return the path item of ``/healthz``. ``health`` is the schema of its answer."""
    responses = {"200": response("It is", health), "503": response("It is not, and why", health)}
    return {"get": {"summary": "Whether this process is well", "responses": responses}}
