"""Search of the history: which epochs have a given actor, command, subject or time. Pure.

An epoch decides one command, or it is a barrier. It also carries the refusals of other commands.
Each of these has an actor, a command and a request id. Facts in parts count in the epoch of their
part.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from stele.domain.base import Fact
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.requests import CommandRefused
from stele.domain.model.schema import tablet_map
from stele.domain.staging import with_those_inside

FOR_EVER_MS: Final = 1 << 62


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A search. All conditions must hold; empty ones are ignored.

    ``facts`` and ``about`` match any of their members: names of facts, and ids or names that a fact
    holds as a whole text. ``request`` is the command's request id, or a text in a fact. Each word
    of ``text`` must occur in the epoch's texts, in upper or lower case. ``refused`` selects only
    refused commands.
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
        """Return sets of texts. Every matching epoch holds one text of each set unchanged."""
        asked = (self.actor, self.command, self.request)
        return [*(frozenset({text}) for text in asked if text), *filter(None, (self.about,))]


def fits(question: Question, epoch: Epoch) -> bool:
    """Return True if the epoch matches the search."""
    if not question.since_ms <= epoch.at_ms <= question.until_ms:
        return False
    # Facts of parts are found in the epoch of the part, not in that of the commit.
    facts = (*with_those_inside(epoch.facts),)
    return (
        (not question.facts or any(type(fact).__name__ in question.facts for fact in facts))
        and _has_entry(question, epoch, facts)
        and (not question.about or not question.about.isdisjoint(texts_of(facts)))
        and _has_words(question, epoch, facts)
    )


def ids_of(image: Image, name: str) -> frozenset[str]:
    """Return the texts that name a node, a keyspace with its tables, or a table in facts.

    ``name`` may be an id as well. Dropped tables and other things outside the image are found by
    their id alone.
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
    """Yield all texts inside, with keys of maps, without names of fields and kinds of facts."""
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


def _has_entry(question: Question, epoch: Epoch, facts: tuple[Fact, ...]) -> bool:
    if not (question.actor or question.command or question.request or question.refused):
        return True
    entries = [
        (fact.actor, fact.command, fact.request_id)
        for fact in facts
        if isinstance(fact, CommandRefused)
    ]
    if not question.refused:
        # A request that a fact names matches like the command's own id.
        is_named = question.request and question.request in texts_of(facts)
        id_ = question.request if is_named else epoch.request_id
        entries.append((epoch.actor, epoch.command, id_))
    asked = (question.actor, question.command, question.request)
    return any(
        all(not wanted or wanted == found for wanted, found in zip(asked, entry, strict=True))
        for entry in entries
    )


def _has_words(question: Question, epoch: Epoch, facts: tuple[Fact, ...]) -> bool:
    if not question.text:
        return True
    own = (epoch.actor, epoch.command, epoch.request_id, epoch.reason, epoch.origin)
    whole = as_searched("\n".join((*own, *texts_of(facts))))
    return all(as_searched(word) in whole for word in question.text)


def as_searched(text: str) -> bytes:
    """Return the text as bytes with A to Z in lower case.

    Undecoded records are searched with it.
    """
    return text.encode().lower()
