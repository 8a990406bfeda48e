"""What other processes may ask of a running stack: files in ``control/``, one question, one answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from stele.cli.errors import CliError, UnreachableError

CONTROL_DIRECTORY = "control"
QUESTION = ".question.json"
ANSWER = ".answer.json"
POLL_S = 0.1


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Start one more node; without a rack, in the stack's own choice. Or kill process ``kill`` for good.

    ``replace`` is a node of the stack whose place the new one takes.
    """

    dc: str = ""
    rack: str = ""
    num_tokens: int | None = None
    shards: int | None = None
    join: bool = True
    replace: str = ""
    kill: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The node that was started, or why not."""

    name: str = ""
    url: str = ""
    error: str = ""


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
        raise CliError(f"The node did not start: {found.error}", "See `stele stack logs`.")
    return found


def answer_questions(directory: Path, handle: Callable[[Control], Answer]) -> None:
    """Answer every question that waits."""
    for question in sorted((directory / CONTROL_DIRECTORY).glob(f"*{QUESTION}")):
        control = msgspec.json.decode(question.read_bytes(), type=Control)
        question.unlink(missing_ok=True)
        try:
            answer = handle(control)
        except Exception as error:  # whatever went wrong, the one who asked is to be told
            answer = Answer(error=" ".join(str(error).split()) or repr(error))
        name = question.name.removesuffix(QUESTION)
        _write(question.with_name(f"{name}{ANSWER}"), msgspec.json.encode(answer))


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)
