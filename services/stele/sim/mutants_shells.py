"""Planted bugs of what runs in the simulator do not reach: how a log is read, what callers may send.

Attackers found each of them once. What finds them now is a test with the real thing; see ``tests/planted.py``.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from stele.agent.orders import OrderExecutor
from stele.catch_up import http as catch_up_http
from stele.catch_up.http import Api
from stele.catch_up.recovering import RecoverQuestion
from stele.console import asking, gate
from stele.console.upstream import Upstream
from stele.domain.commands import Envelope, Outcome, Rejection
from stele.domain.context import Context
from stele.domain.features.counts import Count
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.requests import not_taken
from stele.domain.requests.ids import TIME_CHARS, is_id, state_time_ms
from stele.domain.requests.memory import Young
from stele.log import admin, avro
from stele.log.archive.records import Archived
from stele.log.avro import Reader, read_long
from stele.log.chain import Anchor, Chain
from stele.log.codec import encode_outcome
from stele.log.delivered import Delivered
from stele.log.errors import AnchorLostError, OffsetGoneError, TruncatedError
from stele.log.kafka import KafkaLog, TopicMissingError
from stele.log.notices import Notices
from stele.log.pipeline import CommitPipeline
from stele.log.port import Look, Record
from stele.log.pulse import Moment
from stele.log.reader import LogReader
from stele.metadata_log.commands_topic import CommandsTopic
from stele.metadata_log.writer import Writer
from stele.runtime import callers, http_direct, http_server
from stele.runtime.callers import Caller, Callers, read_callers
from stele.runtime.connections import MOST, Connections
from stele.runtime.http_direct import _Protocol
from stele.runtime.http_errors import ErrorCode, HttpError, parse_json
from stele.runtime.http_handshake import behind_tls
from stele.runtime.tokens import digest_of
from stele.sim.patching import Patch

T = TypeVar("T")


def old_end_is_stepped_over(patch: Patch) -> None:
    """Who reads a hole again believes an end that lies before it: the winner in it is never read."""

    async def fill_hole(self: LogReader) -> None:
        chain = self._fold.chain
        while self._held and self._held[0].offset < chain.next_offset:
            self._held.popleft()
            self._verified -= 1
        if not self._held or self._held[0].offset == chain.next_offset:
            return
        begin, end = chain.next_offset, self._held[0].offset
        read = await self._log.read(begin, end - begin)
        found = [record for record in read if begin <= record.offset < end]
        chain.jump(found[0].offset if found else end)
        self._held.extendleft(reversed(found))
        self._verified += len(found)

    patch.attribute(LogReader, "_fill_hole", fill_hole)


def long_request_id_is_repeated(patch: Patch) -> None:
    """An outcome repeats the whole request id, twice: it fits into no record and is never told."""

    def reply(self: CommandsTopic, partition: int, offset: int, outcome: Outcome) -> None:
        self._send(partition, offset, outcome.request_id, encode_outcome(outcome))

    patch.attribute(CommandsTopic, "_reply", reply)


def count_of_finished_requests_is_anything(patch: Patch) -> None:
    """A setting that the core reads is taken as it comes: with enough digits every later decision breaks."""

    def of(self: Count, settings: Mapping[str, str]) -> int:
        text = settings.get(self.name, "")
        return int(text) if text.isdecimal() and int(text) > 0 else self.default

    patch.attribute(Count, "accepts", lambda self, text: True)
    patch.attribute(Count, "of", of)


def foreign_id_hides_the_newest_time(patch: Patch) -> None:
    """The newest time of a generation is that of the id that sorts last: one of no form has none."""
    plain = Young.with_decisions

    def by_text(self: Young, request_ids: Iterable[str], epoch: int) -> Young:
        found = plain(self, request_ids, epoch)
        last = max(found.table)
        newest = last[:TIME_CHARS] if is_id(last) else ""
        return msgspec.structs.replace(found, newest=newest)

    patch.attribute(Young, "with_decisions", by_text)


def nested_json_is_our_fault(patch: Patch) -> None:
    """A body that is nested deeper than the stack is answered as if the service had a bug."""

    def parse(body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise HttpError(
                400, ErrorCode.INVALID_REQUEST, str(error), hint="Correct it."
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HttpError(400, ErrorCode.MALFORMED_JSON, str(error), hint="Send JSON.") from error

    patch.function(parse_json, parse)


def time_of_the_newest_state_is_believed(patch: Patch) -> None:
    """A writer whose clock was a year ahead once lets in ids of that year, which raise the horizon one day."""

    check_id = not_taken.check_id

    def believe(
        request_id: str, state_id: bytes, now_ms: int, horizon_ms: int = -1
    ) -> Rejection | None:
        newest_ms = max(state_time_ms(state_id), now_ms)
        return check_id(request_id, bytes(16), newest_ms, horizon_ms)

    patch.function(check_id, believe)


def requests_end_by_the_clock_of_the_writer(patch: Patch) -> None:
    """How old a finished request is goes by the clocks of writers, of which one may be slow."""
    patch.attribute(Context, "log_ms", property(lambda self: self.at_ms))


def long_count_of_zero_is_no_end(patch: Patch) -> None:
    """Items end at the byte 0 alone, and where a count of zero is written longer another record is read."""

    def array(item: Reader) -> Reader:
        def read_array(value: bytes, at: int) -> tuple[list[Any], int]:
            found: list[Any] = []
            while value[at]:
                count, at = read_long(value, at)
                for _ in range(count):
                    each, at = item(value, at)
                    found.append(each)
            return found, at + 1

        return read_array

    patch.attribute(avro, "_array", array)


def orders_of_a_term_to_come_are_taken(patch: Patch) -> None:
    """A node carries an order out whose term the log does not have, and refuses those of its own term then."""

    def accepts(self: OrderExecutor, order: Order, image: Image) -> bool:
        if order.term < max(image.topology.coordinator.term, self._term):
            return False
        return order.term > self._term or order.index > self._index

    patch.attribute(OrderExecutor, "_accepts", accepts)


def losers_are_progress(patch: Patch) -> None:
    """Records in flight are forced to an outcome only where no record comes back at all: behind one that was
    lost come losers as long as somebody asks, and nothing is decided any more.
    """
    after_records = Writer._after_records  # noqa: SLF001

    def busy(self: Writer) -> None:
        self._progress_s = self._loop.time()
        after_records(self)

    patch.attribute(Writer, "_after_records", busy)


def report_counts_at_any_age(patch: Patch) -> None:
    """An own record counts as read by its delivery report however long ago the topic was seen to be the right
    one: it may have been made anew, and have grown to that offset.
    """
    patch.attribute(Moment, "age_s", lambda _: 0.0)


def record_behind_anothers_counts_by_its_report(patch: Patch) -> None:
    """An own record counts as read by its delivery report although another's stands before it."""
    reported = Delivered.reported

    def at_once(self: Delivered, offset: int, value: bytes, sent: Moment) -> bool:
        self._next = max(self._next, offset)
        return reported(self, offset, value, sent)

    patch.attribute(Delivered, "reported", at_once)


def record_that_was_reported_is_not_compared(patch: Patch) -> None:
    """What is fetched is not compared with what was reported to stand there, and counted as read."""
    was_read = Delivered._was_read  # noqa: SLF001

    def believed(self: Delivered, record: Record) -> bool:
        reported = self._reported.get(record.offset)
        return was_read(self, record if reported is None else Record(record.offset, reported.value))

    patch.attribute(Delivered, "_was_read", believed)


def topic_made_anew_is_not_noticed(patch: Patch) -> None:
    """That a consumer goes on in another topic of the name is left in its log: one which was made anew and has
    grown to the very offset that is read next is read on, and acknowledged, until the next look.
    """

    def log(self: Notices, level: int, text: str, *values: object) -> None:
        pass

    patch.attribute(Notices, "log", log)


def lost_losers_are_not_missed(patch: Patch) -> None:
    """Of what was read last the winners alone are compared: a winner that stands by now where a loser was lost
    is never read by those who had read that one, and they follow another history than all others.
    """
    patch.attribute(Chain, "passed", property(lambda self: ()))


def barriers_forget_nothing(patch: Patch) -> None:
    """A command behind a barrier is decided although its id is too old for what the barrier's refusals push out
    of memory: somebody else was told that it never would be.
    """
    patch.attribute(CommitPipeline, "_is_forgotten", lambda self, waiting: False)


def nothing_is_lost_too(patch: Patch) -> None:
    """A process whose topic was made anew before it had read any of it stays, as if it held what is lost."""
    compare = LogReader._compare  # noqa: SLF001

    def stays(self: LogReader, anchor: Anchor | None, look: Look) -> None:
        try:
            compare(self, anchor, look)
        except TruncatedError:
            raise
        except OffsetGoneError as error:
            raise AnchorLostError(error.offset, str(error)) from error

    patch.attribute(LogReader, "_compare", stays)


def report_counts_after_reading_has_ended(patch: Patch) -> None:
    """An own record counts as read by its delivery report although another one was lost that had counted."""
    patch.attribute(Delivered, "end", lambda self: None)


def turn_ends_after_reading_has(patch: Patch) -> None:
    """A metadata-log that cannot read its log any more appends what it held for another's turn, after it has
    said that there will be no outcome.
    """

    def append(self: Writer, value: bytes) -> None:
        if self._pipeline.in_flight <= 1:
            self._progress_s = self._loop.time()
        self._log.append(value)

    patch.attribute(Writer, "_append", append)


def withdrawn_tokens_count(patch: Patch) -> None:
    """The file of callers is read at the start alone: whoever was in it stays let in until a restart."""
    patch.attribute(Callers, "_read_again", lambda self: None)


def broken_file_lets_in_who_was_in_it(patch: Patch) -> None:
    """Where the file of callers cannot be read those of before count, and who was meant to be withdrawn."""

    def read_again(self: Callers) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._known = read_callers(self._file.read_text(encoding="utf-8"))

    patch.attribute(Callers, "_read_again", read_again)


def callers_take_any_name(patch: Patch) -> None:
    """A caller's token is looked at, and his name is what he says: the history proves nothing."""
    patch.attribute(Caller, "actor", lambda self, claimed: claimed or self.name)


def callers_do_what_services_do(patch: Patch) -> None:
    """A caller may send steps of the services' own protocols, such as taking the coordinator's office."""
    patch.attribute(Caller, "check", lambda self, what: None)


def wrong_line_is_quoted(patch: Patch) -> None:
    """What is wrong with the file of callers is told to everybody with the line's own words, among which
    somebody has written a token.
    """
    read_line = callers._read_line  # noqa: SLF001

    def quoting(words: list[str]) -> tuple[bytes, Caller]:
        try:
            return read_line(words)
        except ValueError as error:
            raise ValueError(f"'{' '.join(words)}': {error}") from error

    patch.attribute(callers, "_read_line", quoting)


def half_a_line_is_a_line(patch: Patch) -> None:
    """A file of callers whose last line is half written counts: where the commands that a caller may send are
    yet to come, he may send all.
    """
    patch.attribute(callers, "read_callers", lambda text: read_callers(text.rstrip("\n") + "\n"))


def callers_go_by_names_of_services(patch: Patch) -> None:
    """A caller may be called as the coordinator is: to the log and in its history he is that, and gets in where
    it takes the commands of the coordinator alone.
    """
    patch.attribute(callers, "COORDINATOR", "")


def nothing_is_a_token(patch: Patch) -> None:
    """Whoever made his hash of an empty variable lets in everybody who shows no token at all."""
    read_line = callers._read_line  # noqa: SLF001
    nothing = digest_of("")

    def reading(words: list[str]) -> tuple[bytes, Caller]:
        if words[1:] == [nothing.hex()]:
            return nothing, Caller(words[0], frozenset())
        return read_line(words)

    patch.attribute(callers, "_read_line", reading)


def file_of_callers_is_known_by_its_time(patch: Patch) -> None:
    """A file of callers that was written again counts as it was where it has the same size and is given the
    same time, as by tools that give every file one: a token that was withdrawn counts on.
    """

    def mark(file: Path) -> tuple[int, int]:
        found = file.stat()
        return found.st_mtime_ns, found.st_size

    patch.attribute(callers, "_mark", mark)


def any_file_of_callers_is_read(patch: Patch) -> None:
    """A file of callers without an end, or that somebody has yet to write, holds up everything that a service
    does.
    """

    def mark(file: Path) -> os.stat_result:
        return file.stat()

    patch.attribute(callers, "_mark", mark)


def first_header_counts(patch: Patch) -> None:
    """Of two headers with tokens a service goes by the first, and a proxy before it may have by the other."""
    for module in (http_direct, catch_up_http, gate):
        patch.attribute(
            module, "authorization_of", lambda headers: headers.get("authorization", "")
        )


def callers_are_known_before_their_body(patch: Patch) -> None:
    """Who may recover the log is looked at when a request begins: one that takes its time with the body counts
    although the token was withdrawn meanwhile.
    """

    async def asked(self: Api, request: Request) -> tuple[RecoverQuestion, list[Archived]]:
        return self._question(request), await catch_up_http._epochs(request)  # noqa: SLF001

    patch.attribute(Api, "_asked", asked)


def streams_of_pages_go_on(patch: Patch) -> None:
    """A page that has its stream is told of all that happens although its token was withdrawn."""
    patch.attribute(gate, "_is_let_in", lambda callers, shown: True)


def console_leaves_it_to_others_who_may(patch: Patch) -> None:
    """The console asks for what a caller may not do, and under any name: where its metadata-log believes
    everybody it is done.
    """
    envelope_of = asking.envelope_of

    async def of_anybody(
        asked: asking.CommandAsked,
        upstream: Upstream,
        caller: Caller | None = None,
        log_id: str = "",
    ) -> Envelope:
        return await envelope_of(asked, upstream, log_id=log_id)

    patch.attribute(asking, "envelope_of", of_anybody)


def handshakes_are_not_counted(patch: Patch) -> None:
    """A connection counts once TLS has shaken hands: whoever does not go on with that holds all files that a
    process may open, and it can ask nobody any more.
    """
    patch.attribute(
        http_server,
        "behind_tls",
        lambda http, _, context: behind_tls(http, Connections(MOST), context),
    )


def answered_connections_close_by_themselves(patch: Patch) -> None:
    """A connection that is closed is not asked to make room: with TLS it waits for half a minute for its peer
    to close too, and everybody else is kept out.
    """
    watch = _Protocol._watch_its_end  # noqa: SLF001

    def as_without_tls(self: _Protocol) -> None:
        if self.transport.get_write_buffer_size():
            watch(self)

    patch.attribute(_Protocol, "_watch_its_end", as_without_tls)


def looks_at_nothing_make_clients(patch: Patch) -> None:
    """Each look at a topic that is not there makes its clients anew: that costs a process its memory."""
    look = KafkaLog._look  # noqa: SLF001

    def as_after_a_failure(self: KafkaLog, offset: int | None) -> Look:
        try:
            return look(self, offset)
        except TopicMissingError:
            self._admin = None
            raise

    patch.attribute(KafkaLog, "_look", as_after_a_failure)


def errors_keep_who_asked(patch: Patch) -> None:
    """An error of an admin client is raised as it is: a cycle with its future keeps every frame that it passes
    through, and the client.
    """

    def answer_of(asked: Future[T], timeout_s: float) -> T:
        return asked.result(timeout_s)

    patch.attribute(admin, "answer_of", answer_of)


SHELL_MUTANTS: Final = (
    old_end_is_stepped_over,
    long_request_id_is_repeated,
    count_of_finished_requests_is_anything,
    foreign_id_hides_the_newest_time,
    nested_json_is_our_fault,
    time_of_the_newest_state_is_believed,
    requests_end_by_the_clock_of_the_writer,
    long_count_of_zero_is_no_end,
    orders_of_a_term_to_come_are_taken,
    losers_are_progress,
    report_counts_at_any_age,
    record_behind_anothers_counts_by_its_report,
    record_that_was_reported_is_not_compared,
    topic_made_anew_is_not_noticed,
    lost_losers_are_not_missed,
    barriers_forget_nothing,
    nothing_is_lost_too,
    report_counts_after_reading_has_ended,
    turn_ends_after_reading_has,
    withdrawn_tokens_count,
    broken_file_lets_in_who_was_in_it,
    callers_take_any_name,
    callers_do_what_services_do,
    wrong_line_is_quoted,
    half_a_line_is_a_line,
    callers_go_by_names_of_services,
    nothing_is_a_token,
    file_of_callers_is_known_by_its_time,
    any_file_of_callers_is_read,
    first_header_counts,
    callers_are_known_before_their_body,
    streams_of_pages_go_on,
    console_leaves_it_to_others_who_may,
    handshakes_are_not_counted,
    answered_connections_close_by_themselves,
    looks_at_nothing_make_clients,
    errors_keep_who_asked,
)
