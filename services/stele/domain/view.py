"""The image as people and HTTP clients see it: plain JSON values, state ids in hex, one fixed order.

``view`` shows all that is true at an epoch, ``diff`` what two images do not share; both are loops over the
domains.
"""

import msgspec

from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.registry import DOMAINS
from stele.domain.snapshot import state_hash
from stele.domain.tables import Json


def view(image: Image) -> Json:
    """All of the image. Equal images give equal views, in the order of their keys too."""
    shown: Json = {
        "epoch": image.epoch,
        "state_id": image.state_id.hex(),
        "hash": state_hash(image),
    }
    for domain in DOMAINS:
        shown.update(domain.view(getattr(image, domain.name)))
    return shown


def epoch_view(epoch: Epoch) -> Json:
    """One epoch of the log: what became true, who asked for it and why."""
    shown: Json = msgspec.to_builtins(epoch, builtin_types=(bytes,))
    for name in ("prev_state_id", "state_id", "log_id", "witness_state_id", "command_digest"):
        shown[name] = shown[name].hex()
    for fact in shown["facts"]:
        if "digest" in fact:
            fact["digest"] = fact["digest"].hex()
    return shown


def diff(before: Image, after: Image) -> Json:
    """What was added, removed or changed between two images; every section is there, even when equal.

    Rows of entities: ``{added: [row], removed: [row], changed: [{key: id, fields: {name: {before,
    after}}}]}``. Placements, by name, only those that differ: ``{added: [row], removed: [row]}`` in
    ring order. Single rows: only the fields that differ.
    """
    shown: Json = {"from_epoch": before.epoch, "to_epoch": after.epoch}
    for domain in DOMAINS:
        shown.update(domain.diff(getattr(before, domain.name), getattr(after, domain.name)))
    return shown
