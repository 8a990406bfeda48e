"""Which epochs a question about the history means: who did what, to whom, and when. Pure.

An epoch decides one command, or it is a barrier; and it carries the refusals of others. Each of these has an
actor, a command and a request id. Facts in parts count where they stand.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from stele.domain.base import Fact
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.requests.facts import CommandRefused
from stele.domain.schema.facts import tablet_map
from stele.domain.staging.image import with_those_inside

FOR_EVER_MS: Final = 1 << 62


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """All of it must hold; what is empty asks nothing.

    ``facts`` and ``about`` are any of these: names of facts, ids or names that a fact holds as a whole text.
    ``request`` is that of the command, or stands in a fact. Each of the words of ``text`` is somewhere in the
    epoch's texts, in large or small letters. ``refused`` are commands that were refused, and no others.
    """

    actor: str = ""
    command: str = ""
    request: str = ""
    facts: frozenset[str] = frozenset()
    about: frozenset[str] = frozenset()
    text: tuple[str, ...] = ()
    refused: bool = False
    since_ms: int = 0
    until_ms: int = FOR_EVER_MS

    def exact(self) -> list[frozenset[str]]:
        """Texts that every such epoch holds as they are: one of each of these sets."""
        asked = (self.actor, self.command, self.request)
        return [*(frozenset({text}) for text in asked if text), *filter(None, (self.about,))]


class _Entry(NamedTuple):
    actor: str
    command: str
    request_id: str


def fits(question: Question, epoch: Epoch) -> bool:
    """Whether the epoch is one that the question means."""
    if not question.since_ms <= epoch.at_ms <= question.until_ms:
        return False
    facts = (*with_those_inside(epoch.facts),)
    return (
        _has_fact(question, facts)
        and _has_entry(question, epoch, facts)
        and (not question.about or not question.about.isdisjoint(texts_of(facts)))
        and _has_words(question, epoch, facts)
    )


def ids_of(image: Image, name: str) -> frozenset[str]:
    """By which texts facts name a node, a keyspace with its tables, or a table; ``name`` may be an id as well.

    What is not in the image any more, such as a dropped table, is known by its id alone.
    """
    schema, found = image.schema, {name}
    keyspace, table = schema.named(name), schema.table_named(name)
    tables = [table] if table is not None else []
    if keyspace is not None:
        found.add(keyspace.keyspace_id)
        tables += schema.tables_of(keyspace)
    for each in tables:
        found |= {each.table_id, tablet_map(each.table_id), schema.full_name(each)}
    return frozenset(found)


def texts_of(value: object) -> Iterator[str]:
    """All texts inside, keys of maps among them, names of fields and kinds of facts not."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from texts_of(getattr(value, name))
    elif isinstance(value, dict):
        yield from texts_of(tuple(value.items()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from texts_of(each)


def _has_fact(question: Question, facts: Iterable[Fact]) -> bool:
    return not question.facts or any(type(fact).__name__ in question.facts for fact in facts)


def _has_entry(question: Question, epoch: Epoch, facts: tuple[Fact, ...]) -> bool:
    if not (question.actor or question.command or question.request or question.refused):
        return True
    own = _Entry(epoch.actor, epoch.command, epoch.request_id)
    refusals = [fact for fact in facts if isinstance(fact, CommandRefused)]
    entries = [_Entry(fact.actor, fact.command, fact.request_id) for fact in refusals]
    if not question.refused:
        if question.request and question.request in texts_of(facts):
            own = own._replace(request_id=question.request)
        entries.append(own)
    return any(_is_meant(question, entry) for entry in entries)


def _is_meant(question: Question, entry: _Entry) -> bool:
    asked = (question.actor, question.command, question.request)
    return all(not wanted or wanted == found for wanted, found in zip(asked, entry, strict=True))


def _has_words(question: Question, epoch: Epoch, facts: tuple[Fact, ...]) -> bool:
    if not question.text:
        return True
    own = (epoch.actor, epoch.command, epoch.request_id, epoch.reason, epoch.origin)
    whole = as_searched("\n".join((*own, *texts_of(facts))))
    return all(as_searched(word) in whole for word in question.text)


def as_searched(text: str) -> bytes:
    """Large and small letters from A to Z are the same; in bytes, so that a record is searched undecoded."""
    return text.encode().lower()
