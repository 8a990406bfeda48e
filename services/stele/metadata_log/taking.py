"""A writer that also consumes the commands topic once it has read the log."""

from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager

from stele.domain.registry import KNOWN_FEATURES
from stele.log.port import EpochsLog, Log
from stele.metadata_log.commands_topic import CommandsTopic
from stele.metadata_log.founding import OlderCluster
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.metadata_log.writing import writing
from stele.runtime.catch_up import CatchUp
from stele.runtime.starting import end_in_order


@asynccontextmanager
async def taking_commands(
    settings: MetadataLogSettings,
    epochs: EpochsLog,
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
