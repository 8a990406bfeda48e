"""The life of a writer: where it begins, what it is compared with, when it restarts.

No broker is named.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager

from stele.domain.registry import KNOWN_FEATURES
from stele.log.archive.archive import archived
from stele.log.archive.container import Archived
from stele.log.follower import Floor
from stele.log.port import Log
from stele.metadata_log.commands_topic import CommandsTopic
from stele.metadata_log.founding import OlderCluster, older_in_replicas
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.runtime.catch_up import CatchUp, RemoteArchive
from stele.runtime.recent import EPOCHS as RECENT_EPOCHS
from stele.runtime.service import freeze_objects
from stele.runtime.starting import begin, end_in_order, floor_of_most, restart_after_failure


@asynccontextmanager
async def writing(
    settings: MetadataLogSettings,
    epochs: Log,
    catch_up: CatchUp,
    older_cluster: OlderCluster,
    on_read: Callable[[Writer], None],
    end: Callable[[], None] = end_in_order,
    supported: Set[str] = KNOWN_FEATURES,
    past: Log | None = None,
) -> AsyncIterator[Writer]:
    """Run a writer inside the block. Afterwards the log, ``past`` and ``catch_up`` are closed.

    ``on_read`` is called in the event loop once the end is reached, or reading has failed. ``end``
    is called when the process must restart.
    """
    where, floor = await begin(
        catch_up,
        settings.cluster,
        epochs.ends,
        None,
        decided=True,
        patience_s=settings.replicas_patience_s,
    )

    def log_id() -> str:
        return writer.image.log_id.hex()

    async def older_anywhere(asked: MetadataLogSettings) -> str:
        return await older_in_replicas(catch_up, asked.cluster) or await older_cluster(asked)

    older = RemoteArchive(catch_up, log_id) if settings.catch_up_urls else None
    writer = Writer(epochs, settings, older_anywhere, where, older, floor, supported, past)

    async def start_reading() -> None:
        await writer.start()
        freeze_objects()
        on_read(writer)

    starting = asyncio.create_task(start_reading(), name="start")

    async def late_floor() -> Floor | None:
        """Ask again for the floor.

        Replicas that were away at the start may have more of the log, or another one.
        """
        return await floor_of_most(
            catch_up, lambda: {each.log_id for each in writer.image.founding.incarnations}
        )

    comparing = asyncio.create_task(writer.compare(late_floor), name="compare")
    restarting = asyncio.create_task(
        restart_after_failure(
            writer.failed,
            lambda: writer.failure,
            lambda: writer.log_id,
            catch_up,
            end,
            has_read=lambda: writer.has_read,
        ),
        name="restart",
    )
    try:
        yield writer
    finally:
        for task in (comparing, restarting, starting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await writer.close()
        await catch_up.close()


def recent_records(writer: Writer) -> list[Archived]:
    """Return the newest winners that this process has read."""
    return [
        archived(winner.offset, winner.value, winner.decode())
        for winner in writer.history.newest_winners(RECENT_EPOCHS)
    ]


# A writer that also consumes the commands topic once it has read the log.


@asynccontextmanager
async def taking_commands(
    settings: MetadataLogSettings,
    epochs: Log,
    catch_up: CatchUp,
    older_cluster: OlderCluster,
    end: Callable[[], None] = end_in_order,
    supported: Set[str] = KNOWN_FEATURES,
    past: Log | None = None,
) -> AsyncIterator[tuple[Writer, CommandsTopic]]:
    """Run a writer that reads to the end of the log and then also consumes the topic.

    See ``writing``.
    """
    commands: CommandsTopic | None = None

    def on_read(writer: Writer) -> None:
        if commands is not None and writer.failure is None:
            commands.start()

    async with writing(
        settings, epochs, catch_up, older_cluster, on_read, end, supported, past
    ) as writer:
        commands = topic = CommandsTopic(settings, writer)
        try:
            yield writer, topic
        finally:
            commands = None
            await topic.close()
