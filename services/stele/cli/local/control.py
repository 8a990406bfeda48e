"""What other processes may ask of a running stack: files in ``control/``, one question, one answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from stele.cli.errors import CliError, UnreachableError

CONTROL_DIRECTORY = "control"
QUESTION = ".question.json"
ANSWER = ".answer.json"
POLL_S = 0.1


class Deed(StrEnum):
    """What a stack can be asked to do."""

    ADD_NODE = "add-node"
    STOP = "stop"
    START = "start"
    RESTART = "restart"
    KILL = "kill"
    REMOVE = "remove"


_FAILED: Final[Mapping[Deed, str]] = {
    Deed.ADD_NODE: "The new node was not started",
    Deed.STOP: "{} was not stopped",
    Deed.START: "{} was not started",
    Deed.RESTART: "{} was not started again",
    Deed.KILL: "{} was not killed",
    Deed.REMOVE: "{} was not removed",
}


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Start one more node; without a rack, in the stack's own choice. Or do something with process ``name``.

    ``replace`` is a node of the stack whose place the new one takes. ``accepts`` are variables with which a
    node goes on without what it lost.
    """

    deed: Deed = Deed.ADD_NODE
    name: str = ""

    dc: str = ""
    rack: str = ""
    num_tokens: int | None = None
    shards: int | None = None
    join: bool = True
    replace: str = ""

    accepts: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The process that it was about, or why it was not done."""

    name: str = ""
    url: str = ""
    error: str = ""
    hint: str = ""


def ask_stack(directory: Path, control: Control, deadline_s: float) -> Answer:
    """Have the stack that runs over ``directory`` do something. Raises CliError."""
    folder = directory / CONTROL_DIRECTORY
    folder.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4().hex
    question, answer = folder / f"{name}{QUESTION}", folder / f"{name}{ANSWER}"
    _write(question, msgspec.json.encode(control))
    end = time.monotonic() + deadline_s
    while not answer.exists():
        if time.monotonic() > end:
            question.unlink(missing_ok=True)
            raise UnreachableError(
                f"The stack over {directory} did not answer in {deadline_s:.0f} s.",
                "See its log, stack.log, or `stele stack status`.",
            )
        time.sleep(POLL_S)
    found = msgspec.json.decode(answer.read_bytes(), type=Answer)
    answer.unlink(missing_ok=True)
    if found.error:
        raise CliError(found.error, found.hint)
    return found


def answer_questions(directory: Path, handle: Callable[[Control], Answer]) -> None:
    """Answer every question that waits."""
    for question in sorted((directory / CONTROL_DIRECTORY).glob(f"*{QUESTION}")):
        control = msgspec.json.decode(question.read_bytes(), type=Control)
        question.unlink(missing_ok=True)
        try:
            answer = handle(control)
        except CliError as error:
            answer = Answer(error=error.message, hint=error.hint)
        except Exception as error:  # whatever went wrong, the one who asked is to be told
            text = (" ".join(str(error).split()) or repr(error)).rstrip(".")
            log = f"`stele stack logs {control.name or 'stack'}`"
            answer = Answer(
                error=f"{_FAILED[control.deed].format(control.name)}: {text}.", hint=f"See {log}."
            )
        name = question.name.removesuffix(QUESTION)
        _write(question.with_name(f"{name}{ANSWER}"), msgspec.json.encode(answer))


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)
