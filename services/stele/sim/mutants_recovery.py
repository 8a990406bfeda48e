"""Known bugs of recovery: who goes past it, what is taken for lost, and what is counted twice."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from stele.agent import lost_epochs
from stele.agent.gate import Gate, NotThisReplica
from stele.agent.identity import DataDirectory, Identity
from stele.agent.lost_epochs import Binding
from stele.cli import left
from stele.cli.commands import recover as commands
from stele.cli.left import Left
from stele.domain.base import Rejection
from stele.domain.cluster import lineage
from stele.domain.cluster.facts import ClusterImage, LogRecovered
from stele.domain.cluster.lineage import Standing
from stele.domain.context import Context
from stele.domain.facts import Epoch
from stele.domain.image import ZERO_STATE, Image
from stele.domain.recovery import consent, histories, record, versions
from stele.domain.recovery.consent import Absent
from stele.domain.recovery.histories import Choice, GivenUp, Source
from stele.log import incarnations, recovery
from stele.log.chain import LOG_ID, PREV_STATE_ID, Chain, Verdict
from stele.log.codec import DecodeError, decode_epoch
from stele.log.follower import Floor
from stele.log.port import Record
from stele.log.reader import LogReader
from stele.metadata_log.streams import Streams
from stele.node.http import NodeHttp
from stele.sim.patching import Patch


def recovery_is_passed_by(patch: Patch) -> None:
    """A reader takes the first record of the recovered log for a stray, and goes on with its own."""
    patch.function(incarnations.check_stray, lambda chain, offset, value: None)


def any_recovery_is_ones_own(patch: Patch) -> None:
    """A reader stops at every record that recovers a log, whichever log that was."""

    def any_log(log_id: bytes, offset: int, value: bytes) -> LogRecovered | None:
        try:
            return record.recovery_of(decode_epoch(value))
        except DecodeError:
            return None

    patch.function(incarnations.recovered_from, any_log)


def unreadable_recovery_is_passed_by(patch: Patch) -> None:
    """A record of a later log whose schema is not known is a stray like any other."""
    plain = incarnations.recovered_from

    def readable(log_id: bytes, offset: int, value: bytes) -> LogRecovered | None:
        try:
            decode_epoch(value)
        except DecodeError:
            return None
        return plain(log_id, offset, value)

    patch.function(plain, readable)


def replay_crosses_wherever_it_is(patch: Patch) -> None:
    """A replay goes on as the recovered log from whatever epoch it has reached of the old one."""

    def anywhere(chain: Chain, offset: int, value: bytes) -> Epoch | None:
        if incarnations.recovered_from(chain.log_id, offset, value) is None:
            return None
        epoch = decode_epoch(value)
        here = {"prev_state_id": chain.state_id, "epoch": chain.epoch + 1}
        return msgspec.structs.replace(epoch, **here)

    patch.function(incarnations.crossing, anywhere)


def older_log_follows_a_later_one(patch: Patch) -> None:
    """A log whose id is smaller may be what another one was recovered as."""

    def any_order(epoch: Epoch) -> LogRecovered | None:
        (fact,) = epoch.facts if len(epoch.facts) == 1 else (None,)
        if not isinstance(fact, LogRecovered):
            return None
        said = fact.log_id, fact.state_id, fact.last_epoch + 1
        return (
            fact if said == (epoch.log_id.hex(), epoch.prev_state_id.hex(), epoch.epoch) else None
        )

    patch.function(record.recovery_of, any_order)


def last_recovery_counts(patch: Patch) -> None:
    """Of two who recover the log at once, the one whose record came later goes on too."""

    def last(records: Iterable[Record], log_id: bytes) -> Record | None:
        found = [r for r in records if incarnations.recovered_from(log_id, *r) is not None]
        return found[-1] if found else None

    patch.function(recovery.first_recovery, last)


def log_begins_anywhere(patch: Patch) -> None:
    """A reader that knows nothing passes later epochs by until a founding comes."""

    def patient(self: Chain, offset: int, value: bytes) -> Verdict:
        is_founding = value[PREV_STATE_ID] == ZERO_STATE and value[LOG_ID] != ZERO_STATE
        return Verdict.WINNER if is_founding else Verdict.STRAY

    patch.attribute(Chain, "_judge_founding", patient)


def different_histories_are_one(patch: Patch) -> None:
    """Archives that have different epochs of one number are not compared: the longest is taken."""

    def none(sources: Iterable[Source]) -> None:
        return None

    patch.function(histories.first_difference, none)


def missed_recovery_is_a_history(patch: Patch) -> None:
    """An archive that has missed a recovery is believed in what that gave up."""
    patch.attribute(histories, "_without_given_up", lambda source, told: source)


def lost_epochs_are_kept(patch: Patch) -> None:
    """A node that acknowledged lost epochs goes on as if they were there."""
    plain = lineage.standing

    def kept(image: ClusterImage, log_id: str, epoch: int, state_id: str = "") -> Standing:
        found = plain(image, log_id, epoch, state_id)
        return Standing.KEPT if found is Standing.LOST else found

    patch.function(plain, kept)


def any_loss_is_accepted(patch: Patch) -> None:
    """The setting that accepts a loss need not name the log that the node is bound to."""
    plain = lost_epochs.binding

    def any_name(identity: Identity, image: Image, accept: str) -> Binding:
        return plain(identity, image, accept and identity.log_id)

    patch.function(plain, any_name)


def acceptance_forgets_nothing(patch: Patch) -> None:
    """A loss that is accepted is not noted, and what was acknowledged of the lost epochs stays."""
    plain = lost_epochs.binding

    def unnoted(identity: Identity, image: Image, accept: str) -> Binding:
        return msgspec.structs.replace(plain(identity, image, accept), loss=None)

    patch.function(plain, unnoted)


def accepted_losses_are_compared_by_number(patch: Patch) -> None:
    """An accepted loss is none when the recovered log has an epoch of that number."""
    plain = lost_epochs.binding

    def by_number(identity: Identity, image: Image, accept: str) -> Binding:
        told = identity.acknowledged
        kept = lineage.standing(image.founding, identity.log_id, told.epoch, told.state_id)
        return Binding() if kept is Standing.KEPT else plain(identity, image, accept)

    patch.function(plain, by_number)


def older_logs_are_refused_at_once(patch: Patch) -> None:
    """A node that reads an older log on the way to its own takes it for another one's, and ends for good."""
    plain = lost_epochs.binding

    def hasty(identity: Identity, image: Image, accept: str) -> Binding:
        return msgspec.structs.replace(plain(identity, image, accept), is_older=False)

    patch.function(plain, hasty)


def older_logs_reach_the_floor(patch: Patch) -> None:
    """An older log that has as many epochs as were acknowledged of a later one counts as read to its end."""
    patch.attribute(Floor, "is_older", lambda self, log_id: False)


def last_winner_is_the_whole_log(patch: Patch) -> None:
    """Of the winners that were read only the last one is looked for in the topic."""

    async def nothing(self: LogReader) -> None:
        pass

    patch.attribute(LogReader, "_compare_recent", nothing)


def ids_of_lost_epochs_come_again(patch: Patch) -> None:
    """Ids are made of the epoch alone: what is made in a recovered log may have the id of what was lost."""
    unique = Context.unique

    def forgetful(self: Context, what: str) -> str:
        founding = msgspec.structs.replace(self.image.founding, incarnations=())
        return unique(
            self._replace(image=msgspec.structs.replace(self.image, founding=founding)), what
        )

    patch.attribute(Context, "unique", forgetful)


def versions_of_lost_epochs_come_again(patch: Patch) -> None:
    """Topology versions go on from the last one that is known."""
    patch.attribute(ClusterImage, "version_floor", property(lambda self: 0))


def nodes_of_another_log_are_answered(patch: Patch) -> None:
    """A node answers one that has not heard that the log was recovered."""
    plain = NodeHttp._check_is_meant  # noqa: SLF001

    def whoever(self: NodeHttp, request: Any) -> None:
        headers = {"x-stele-replica": request.headers.get("x-stele-replica", "")}
        plain(self, type("Request", (), {"headers": headers})())

    patch.attribute(NodeHttp, "_check_is_meant", whoever)


def epochs_behind_a_hole_are_lost(patch: Patch) -> None:
    """A recovery does not wait until a replica has got what is missing before its newest epochs."""
    patch.attribute(Left, "held_up", lambda self, choice: ())


def what_is_shared_before_a_hole_proves_what_is_behind_it(patch: Patch) -> None:
    """Epochs behind a damaged file are taken for those of the history that shares the ones before it."""
    patch.function(histories._decisive, histories._newest_until)  # noqa: SLF001


def silent_replicas_are_passed_by(patch: Patch) -> None:
    """A recovery goes on without the replicas that do not answer, though nobody has named them."""
    patch.attribute(Absent, "is_among", lambda self, names: True)


def promises_are_forgotten(patch: Patch) -> None:
    """A node that was started since the log was lost tells nothing of what it has acknowledged."""
    patch.attribute(DataDirectory, "promised", lambda self: None)


def nodes_end_where_the_log_is_short(patch: Patch) -> None:
    """A node that a log falls short of gives up, and tells nobody what it has promised."""

    def ends(self: Gate, why: str, older: str) -> None:
        self.failure = NotThisReplica(older or why)

    patch.attribute(Gate, "_miss", ends)


def old_promises_are_unproven(patch: Patch) -> None:
    """A recovery is held up by what a node acknowledged before all that archives still have."""

    def never(chosen: Source, source: Source) -> bool:
        return False

    patch.function(histories._is_past, never)  # noqa: SLF001


def versions_go_on_by_a_fixed_number(patch: Patch) -> None:
    """Two logs that go on from the same epoch, the second in the place of the first, have the same versions."""

    def floor_after(version: int, at_ms: int, lost_epochs: int = 0) -> int:
        return version + max(versions.LOST_VERSIONS, lost_epochs)

    patch.function(versions.floor_after, floor_after)


def what_was_given_up_is_not_named(patch: Patch) -> None:
    """Epochs that an earlier recovery gave up, and that a replica has which turned up, are left unsaid."""

    def nothing(told: Sequence[Source]) -> tuple[GivenUp, ...]:
        return ()

    patch.function(histories._given_up, nothing)  # noqa: SLF001


def lost_logs_are_not_missed(patch: Patch) -> None:
    """A node that has followed a later log than all that is left is no reason to ask."""

    def never(chosen: Source, source: Source) -> bool:
        return False

    patch.function(histories._is_of_a_lost_log, never)  # noqa: SLF001


def the_last_answer_counts_alone(patch: Patch) -> None:
    """While a recovery waits it forgets what was told before by whoever tells less now."""
    patch.attribute(Left, "remembering", lambda self, before: self)


def who_is_told_of_once_is_forgotten(patch: Patch) -> None:
    """A silent replica is not missed any more once the one that told of it does not answer for a moment."""

    def nobody(before: Left, now: Left) -> dict[str, str]:
        return {}

    patch.function(left._unasked, nobody)  # noqa: SLF001


def a_start_takes_back_what_was_read(patch: Patch) -> None:
    """While a recovery waits, a process that is started again takes back what it had read."""

    def tells_more(before: Source, now: Source | None) -> bool:
        return now is None or (before.newest, before.last_image) > (now.newest, now.last_image)

    patch.function(left._tells_more, tells_more)  # noqa: SLF001


def people_decide_before_all_have_told(patch: Patch) -> None:
    """Two histories are told of at once, though a replica that is on its way up may settle whose counts."""
    plain = commands._waits  # noqa: SLF001

    def waits(all_: Left, chosen: Choice | Rejection, without: tuple[str, ...]) -> list[str]:
        settled = isinstance(chosen, Rejection) and chosen.code != "unproven"
        return [] if settled else plain(all_, chosen, without)

    patch.function(commands._waits, waits)  # noqa: SLF001


def versions_go_on_by_a_fixed_number_for_a_while(patch: Patch) -> None:
    """Two logs that go on from one that was recovered minutes ago have the same versions."""

    def floor_after(version: int, at_ms: int, lost_epochs: int = 0) -> int:
        return max(version + max(versions.LOST_VERSIONS, lost_epochs), at_ms)

    patch.function(versions.floor_after, floor_after)


def old_promises_are_compared_with_the_longest_alone(patch: Patch) -> None:
    """Whether another replica has what a node promised before all that the longest history has is not asked."""
    plain = histories.to_compare

    def to_compare(told: Sequence[Source]) -> tuple[int, ...]:
        return plain([each for each in told if not each.promised])

    patch.function(histories.to_compare, to_compare)


def known_epochs_are_lost_unasked(patch: Patch) -> None:
    """A recovery goes on from an epoch before the newest that somebody knows, though nobody has said so."""
    plain = consent.unagreed

    def lightly(
        choice: Choice, absent: Iterable[Absent], without: Collection[str], lose_after: int | None
    ) -> Rejection | None:
        return plain(choice, absent, without, choice.epoch)

    patch.function(consent.unagreed, lightly)


def streams_go_by_the_image(patch: Patch) -> None:
    """A stream takes an epoch that was refused for one to be told, and asks for it without end."""
    patch.attribute(
        Streams,
        "_is_after_all",
        lambda self, epoch: epoch > self._writer.image.epoch,
    )


RECOVERY_TEST_MUTANTS: Final = (
    recovery_is_passed_by,
    any_recovery_is_ones_own,
    unreadable_recovery_is_passed_by,
    replay_crosses_wherever_it_is,
    older_log_follows_a_later_one,
    last_recovery_counts,
    log_begins_anywhere,
    different_histories_are_one,
    missed_recovery_is_a_history,
    lost_epochs_are_kept,
    any_loss_is_accepted,
    acceptance_forgets_nothing,
    accepted_losses_are_compared_by_number,
    older_logs_are_refused_at_once,
    older_logs_reach_the_floor,
    last_winner_is_the_whole_log,
    ids_of_lost_epochs_come_again,
    versions_of_lost_epochs_come_again,
    nodes_of_another_log_are_answered,
    epochs_behind_a_hole_are_lost,
    what_is_shared_before_a_hole_proves_what_is_behind_it,
    silent_replicas_are_passed_by,
    promises_are_forgotten,
    nodes_end_where_the_log_is_short,
    old_promises_are_unproven,
    versions_go_on_by_a_fixed_number,
    what_was_given_up_is_not_named,
    lost_logs_are_not_missed,
    the_last_answer_counts_alone,
    who_is_told_of_once_is_forgotten,
    a_start_takes_back_what_was_read,
    people_decide_before_all_have_told,
    versions_go_on_by_a_fixed_number_for_a_while,
    old_promises_are_compared_with_the_longest_alone,
    known_epochs_are_lost_unasked,
    streams_go_by_the_image,
)
