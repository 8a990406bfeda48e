"""Structured logs on standard error: JSON lines for machines, text for people.

Standard output stays free for the announcement line (`runtime.http`).
"""

from __future__ import annotations

import logging
import sys

import stamina.instrumentation
import structlog
from structlog.stdlib import BoundLogger
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import Processor

# They log a line for each request or reconnection; our own lines give the same with an epoch.
QUIET_LIBRARIES = ("aiokafka", "faust", "httpx", "mode", "py4j", "uvicorn.access")


def configure_logs(*, service: str, instance: str, level: str = "info", json: bool = True) -> None:
    """Set up structlog and the standard library's logging for the whole process."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[Processor] = (
        [
            # Locals of a frame that makes a client are its settings, and so the password.
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ]
        if json
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    stamina.instrumentation.set_on_retry_hooks(
        []
    )  # callers log once what is unavailable, in their own text
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service, instance=instance)


def get_logger(name: str) -> BoundLogger:
    """Return a logger: `log.info("snapshot written", size_bytes=n)`."""
    logger: BoundLogger = structlog.stdlib.get_logger(name)
    return logger
