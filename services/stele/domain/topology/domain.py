"""The domain of versions and transitions, entered in the registry."""

from collections.abc import Iterable

import msgspec

from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_fields, changed_rows, row_json
from stele.domain.topology import decide
from stele.domain.topology.commands import (
    Advance,
    AdvanceFence,
    ClaimCoordinator,
    ExcludeDead,
    FinishCleanup,
    FinishEnabling,
    RelaxBarrier,
    Rollback,
    ServeRequest,
)
from stele.domain.topology.facts import (
    BarrierRelaxed,
    CoordinatorChanged,
    TopologyFact,
    Transition,
    TransitionFinished,
    TransitionMarked,
    TransitionMoved,
    TransitionOpened,
    TransitionPlanned,
    TransitionUnplanned,
    VersionsChanged,
)
from stele.domain.topology.heads import TransitionHead, TransitionSummary, Versions
from stele.domain.topology.image import TopologyImage
from stele.domain.topology.operations.table import OPERATIONS
from stele.domain.topology.pieces import joined, opening

replace = msgspec.structs.replace


def versions_changed(image: TopologyImage, fact: VersionsChanged) -> TopologyImage:
    new = fact.versions
    assert image.version <= new.version
    # The fence neither goes back nor passes the version (I3).
    assert image.fence_version <= new.fence_version <= new.version
    return replace(image, **msgspec.structs.asdict(new))


def barrier_relaxed(image: TopologyImage, fact: BarrierRelaxed) -> TopologyImage:
    assert fact.version == image.version
    return replace(image, relaxed_to=fact.level)


def coordinator_changed(image: TopologyImage, fact: CoordinatorChanged) -> TopologyImage:
    return replace(image, coordinator=fact.coordinator)


def transition_opened(image: TopologyImage, fact: TransitionOpened) -> TopologyImage:
    opened = fact.transition
    return replace(image, transitions=image.transitions.set(opened.transition_id, opened))


def transition_moved(image: TopologyImage, fact: TransitionMoved) -> TopologyImage:
    return _changed(
        image,
        fact.transition_id,
        state=fact.state,
        session=fact.session,
        entered_version=fact.entered_version,
        entered_epoch=fact.entered_epoch,
    )


def transition_marked(image: TopologyImage, fact: TransitionMarked) -> TopologyImage:
    return _changed(image, fact.transition_id, mark=fact.mark, blamed=fact.blamed)


def transition_planned(image: TopologyImage, fact: TransitionPlanned) -> TopologyImage:
    before = image.transitions[fact.transition_id].plans
    plan = joined(before.get(fact.placement), fact.plan)
    return _changed(image, fact.transition_id, plans={**before, fact.placement: plan})


def transition_unplanned(image: TopologyImage, fact: TransitionUnplanned) -> TopologyImage:
    before = image.transitions[fact.transition_id].plans
    plans = {name: plan for name, plan in before.items() if name != fact.placement}
    return _changed(image, fact.transition_id, plans=plans)


def transition_finished(image: TopologyImage, fact: TransitionFinished) -> TopologyImage:
    return replace(image, transitions=image.transitions.delete(fact.transition_id))


def _changed(image: TopologyImage, transition_id: str, **fields: object) -> TopologyImage:
    changed = replace(image.transitions[transition_id], **fields)
    return replace(image, transitions=image.transitions.set(transition_id, changed))


def to_facts(image: TopologyImage) -> Iterable[TopologyFact]:
    yield VersionsChanged(versions_of(image))
    yield CoordinatorChanged(image.coordinator)
    for transition in image.open():
        yield from opening(transition)


def versions_of(image: TopologyImage) -> Versions:
    return Versions(**{name: getattr(image, name) for name in Versions.__struct_fields__})


def summary_of(transition: Transition) -> TransitionSummary:
    """Return a transition without the rows of its plans, which may be as many as the ring's."""
    head = {name: getattr(transition, name) for name in TransitionHead.__struct_fields__}
    ranges = {name: len(plan.rows) for name, plan in sorted(transition.plans.items())}
    return TransitionSummary(**head, ranges=ranges)


def view(image: TopologyImage) -> Json:
    return {
        "topology": versions_of(image),
        "coordinator": image.coordinator,
        "transitions": tuple(image.open()),
    }


def diff(before: TopologyImage, after: TopologyImage) -> Json:
    return {
        "topology": changed_fields(row_json(versions_of(before)), row_json(versions_of(after))),
        "coordinator": changed_fields(row_json(before.coordinator), row_json(after.coordinator)),
        "transitions": changed_rows(
            "transition_id",
            {t.transition_id: summary_of(t) for t in before.open()},
            {t.transition_id: summary_of(t) for t in after.open()},
        ),
    }


DOMAIN = Domain(
    name="topology",
    empty=TopologyImage(),
    decide={
        ClaimCoordinator: decide.claim_coordinator,
        Advance: decide.advance,
        AdvanceFence: decide.advance_fence,
        RelaxBarrier: decide.relax_barrier,
        Rollback: decide.rollback,
        ExcludeDead: decide.exclude_dead,
        ServeRequest: decide.serve_request,
        FinishCleanup: decide.finish_cleanup,
        FinishEnabling: decide.finish_enabling,
        **{each.command: each.ask for each in OPERATIONS.values() if each.command is not None},
    },
    apply={
        VersionsChanged: versions_changed,
        BarrierRelaxed: barrier_relaxed,
        CoordinatorChanged: coordinator_changed,
        TransitionOpened: transition_opened,
        TransitionMoved: transition_moved,
        TransitionMarked: transition_marked,
        TransitionPlanned: transition_planned,
        TransitionUnplanned: transition_unplanned,
        TransitionFinished: transition_finished,
    },
    to_facts=to_facts,
    view=view,
    diff=diff,
)
