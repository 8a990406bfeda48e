"""The domain of keyspaces, entered in the registry."""

from collections.abc import Iterable

from stele.domain.registry_entry import Domain
from stele.domain.schema.decide import create_keyspace
from stele.domain.schema.facts import (
    CreateKeyspace,
    KeyspaceChanged,
    KeyspaceDropped,
    SchemaImage,
)
from stele.domain.tables import Json, changed_rows, sorted_values


def keyspace_changed(image: SchemaImage, fact: KeyspaceChanged) -> SchemaImage:
    keyspace = fact.keyspace
    return SchemaImage(
        image.by_id.set(keyspace.keyspace_id, keyspace),
        image.ids.set(keyspace.name, keyspace.keyspace_id),
    )


def keyspace_dropped(image: SchemaImage, fact: KeyspaceDropped) -> SchemaImage:
    name = image.by_id[fact.keyspace_id].name
    return SchemaImage(image.by_id.delete(fact.keyspace_id), image.ids.delete(name))


def to_facts(image: SchemaImage) -> Iterable[KeyspaceChanged]:
    return (KeyspaceChanged(keyspace) for keyspace in sorted_values(image.by_id))


def view(image: SchemaImage) -> Json:
    return {"keyspaces": tuple(sorted(image.by_id.values(), key=lambda k: k.name))}


def diff(before: SchemaImage, after: SchemaImage) -> Json:
    return {"keyspaces": changed_rows("keyspace_id", before.by_id, after.by_id)}


DOMAIN = Domain(
    name="schema",
    empty=SchemaImage(),
    decide={CreateKeyspace: create_keyspace},
    apply={KeyspaceChanged: keyspace_changed, KeyspaceDropped: keyspace_dropped},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
