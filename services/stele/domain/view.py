"""The image as people and HTTP clients see it: plain JSON values in one fixed order.

State ids are in hex. ``view`` shows the whole state at an epoch, ``diff`` the differences of two
images. Both are loops over the domains.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from stele.domain.column import as_list
from stele.domain.evolve import Delta
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.registry import DOMAINS, FACTS
from stele.domain.registry_entry import Filter
from stele.domain.snapshot import state_hash
from stele.domain.tables import Json, plain_values

_OF_SECTION: Final = {name: domain for domain in DOMAINS for name in domain.view_of(domain.empty)}


def view(image: Image) -> Json:
    """Return the whole image. Equal images give equal views, also in the order of their keys."""
    shown: Json = {
        "epoch": image.epoch,
        "state_id": image.state_id.hex(),
        "hash": state_hash(image),
    }
    return {**shown, **plain_values(sections(image))}


def sections(image: Image) -> Json:
    """Return every section of the view with its rows, not encoded yet."""
    found: Json = {}
    for domain in DOMAINS:
        found.update(domain.view_of(getattr(image, domain.name)))
    return found


def section(image: Image, name: str) -> Any:
    """Return one section of the view; its rows are a sequence."""
    domain = _OF_SECTION[name]
    return domain.view_of(getattr(image, domain.name))[name]


def filters() -> dict[str, Mapping[str, Filter]]:
    """Return the filters for the rows of each section."""
    return {section: known for domain in DOMAINS for section, known in domain.filters.items()}


def delta_view(before: Image, after: Image, epoch: Epoch) -> Json:
    """Return the sections of ``diff`` for one epoch, limited to those that its facts touch.

    The facts of parts that it commits are included.
    """
    shown: Json = {}
    by_domain = defaultdict[str, list[Any]](list)
    for fact in Delta(before, epoch).facts():
        by_domain[FACTS[type(fact)][0]].append(fact)
    for domain in DOMAINS:
        facts = by_domain[domain.name]
        if facts:
            old, new = getattr(before, domain.name), getattr(after, domain.name)
            # ``diff`` would compare the whole domain, where ``delta`` reads only the facts.
            changed = domain.delta(old, new, facts) if domain.delta else domain.diff_of(old, new)
            shown.update({section: what for section, what in changed.items() if any(what.values())})
    return shown


def epoch_view(epoch: Epoch) -> Json:
    """Return one epoch of the log: its facts, the sender and the reason."""
    shown: Json = msgspec.to_builtins(epoch, builtin_types=(bytes,), enc_hook=as_list)
    for name in ("prev_state_id", "state_id", "log_id", "witness_state_id", "command_digest"):
        shown[name] = shown[name].hex()
    for fact in shown["facts"]:
        if "digest" in fact:
            fact["digest"] = fact["digest"].hex()
    return shown


def diff(before: Image, after: Image) -> Json:
    """Return the additions, removals and changes between two images.

    Every section is present, even if equal.

    - Rows of entities: ``{added: [row], removed: [row], changed: [{key: id, fields: {name: {before,
      after}}}]}``.
    - Placements, by name, only those that differ: ``{added: [row], removed: [row]}`` in ring order.
    - Single rows: only the fields that differ.
    """
    shown: Json = {"from_epoch": before.epoch, "to_epoch": after.epoch}
    for domain in DOMAINS:
        shown.update(domain.diff_of(getattr(before, domain.name), getattr(after, domain.name)))
    return shown
