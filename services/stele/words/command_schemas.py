"""Descriptions of commands in OpenAPI documents, from the table of operations."""

from typing import Any

from stele.domain.commands import COMMANDS
from stele.words.operations import TEXTS


def describe_commands(components: dict[str, dict[str, Any]]) -> None:
    """Describe the commands of operations, and their fields, in a document's components."""
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
