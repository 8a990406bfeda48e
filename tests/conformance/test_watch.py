"""The watch reports the rules that acknowledgements and reports break."""

from __future__ import annotations

from msgspec.structs import replace

from stele.domain.image import Image
from stele.domain.messages import Ack, Order, Report
from stele.domain.names import OrderKind, ReportStatus
from stele_harness.conformance.watch import PATIENCE_S, Watch
from tests.node.world import World


def watch_of(world: World) -> Watch:
    watch = Watch()
    for image in world.history.images[1:]:
        watch.on_epoch(image, 0.0)
    return watch


def ack_of(image: Image, sequence: int = 1, boot: str = "1") -> Ack:
    topology = image.topology
    return Ack(
        node_id="n1",
        boot_id=boot,
        sequence=sequence,
        epoch=image.epoch,
        version=topology.version,
        fence_version=topology.fence_version,
        oldest_version_in_use=topology.version,
        log_id=image.log_id,
        state_id=image.state_id,
        host_id="host-n1",
    )


def rules(watch: Watch) -> list[str]:
    return [broken.rule for broken in watch.broken]


def test_ack_may_precede_its_epoch_but_needs_one() -> None:
    world = World()
    watch = watch_of(world)
    world.start_join()
    watch.on_ack(ack_of(world.image), 1.0)
    for image in world.history.images[1:]:
        watch.on_epoch(image, 1.1)
    watch.tick(1.1 + PATIENCE_S)
    assert not watch.broken and watch.boots_of("n1") == 1
    watch.on_ack(replace(ack_of(world.image, 2), epoch=world.image.epoch + 1), 7.0)
    watch.tick(7.1 + PATIENCE_S)
    assert rules(watch) == ["ack-is-of-this-log"]


def test_new_boot_id_counts_as_one_more_start() -> None:
    world = World()
    watch = watch_of(world)
    watch.on_ack(ack_of(world.image, 1), 0.0)
    watch.on_ack(ack_of(world.image, 2), 1.0)
    assert watch.boots_of("n1") == 1
    watch.on_ack(ack_of(world.image, 3, boot="2"), 2.0)
    assert watch.boots_of("n1") == 2 and not watch.broken


def test_ack_of_an_older_epoch_after_a_restart_breaks_a_rule() -> None:
    world = World()
    before = world.image
    world.start_join()
    watch = watch_of(world)
    watch.on_ack(ack_of(world.image), 0.0)
    watch.on_ack(ack_of(before, 2, boot="2"), 1.0)
    assert rules(watch) == ["acknowledged-is-kept"]


def test_sequence_must_increase_across_restarts() -> None:
    world = World()
    watch = watch_of(world)
    watch.on_ack(ack_of(world.image, 7), 0.0)
    watch.on_ack(ack_of(world.image, 7, boot="2"), 1.0)
    assert rules(watch) == ["ack-goes-up"]


def test_missing_acks_and_stale_acks_break_different_rules() -> None:
    world = World()
    watch = watch_of(world)
    watch.on_ack(ack_of(world.image), 0.0)
    watch.expect_acks("n1", 0.0)
    old = world.image
    world.start_join()
    for image in world.history.images[old.epoch + 1 :]:
        watch.on_epoch(image, 1.0)
    for at_s in range(2, 8):
        watch.on_ack(ack_of(old, at_s), float(at_s))
        watch.tick(float(at_s))
    assert rules(watch) == ["reads-on"]
    watch.tick(7.5 + PATIENCE_S)
    assert rules(watch) == ["reads-on", "heartbeat"]


def test_report_needs_an_order_and_success_is_final() -> None:
    watch = Watch()
    order = Order(node_id="n1", term=1, index=4, kind=OrderKind.STREAM, epoch=1, session="s")
    report = Report(
        node_id="n1",
        term=1,
        index=4,
        kind=OrderKind.STREAM,
        session="s",
        request_id="",
        status=ReportStatus.SUCCESS,
    )
    watch.on_report(report, 0.0)
    watch.on_order(order)
    watch.tick(0.1)
    assert watch.status_of(order) is ReportStatus.SUCCESS and not watch.broken
    watch.on_report(replace(report, status=ReportStatus.FAILED), 0.2)
    assert rules(watch) == ["success-is-final", "failure-says-why"]
    watch.on_report(replace(report, index=9), 0.3)
    watch.tick(0.4 + PATIENCE_S)
    assert rules(watch)[2:] == ["report-names-its-order"]
