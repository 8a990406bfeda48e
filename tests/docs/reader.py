"""Runs the commands of a page in order, and compares their output.

Numbers and ids differ from run to run, so they are not compared. Addresses, ids and epochs of a page are mapped
to those of this run, and later commands of the page use the latter. ``...`` stands for any text, on a separate
line for any lines.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import CodeType, TracebackType
from typing import Self

from stele.cli.main import run
from stele.cli.places import DEFAULT_DIRECTORY, is_held, read_stack_file
from stele_harness.stack.lifecycle import bring_down
from stele_harness.stack.process import Process, Program, spawn
from tests.docs.pages import REPOSITORY, Block, Shown, commands
from tests.polling import POLL_S, wait_until

COMMAND_TIMEOUT_S = 240
REPEATED = tuple(
    f"stele {name}"
    for name in (
        "status",
        "balance",
        "nodes",
        "ring",
        "requests",
        "plan",
        "why",
        "watch",
        "stack logs",
    )
)
"""Commands that show the current state. They are repeated until the output matches the page."""
REPEAT_FOR_S = 240.0
ANYTHING = "..."
_ID = (
    r"\b[0-9a-f]{8}-[0-9a-f]{4}(?:(?:-[0-9a-f]{4}){2}-[0-9a-f]{12})?(?![-\w])"
    r"|\b[0-9a-f]{32,64}\b"
)
"""A request id, its short form, or a state id."""
_URL = r"https?://[\w.:]+"
_NUMBER = r"(?<![A-Za-z_\d])-?\d+(?:[.,:]\d+)*"
_EPOCH = r"(?<=epoch )\d+|^\d+(?= \d{4}-\d\d-)"
_VARIES = re.compile(rf"(?P<url>{_URL})|(?P<id>{_ID})|(?P<epoch>{_EPOCH})|(?P<number>{_NUMBER})")
_NAMES = {
    "url": rf"({_URL})",
    "id": rf"({_ID})",
    "epoch": r"(\d+)",
    "number": r"-?\d+(?:[.,:]\d+)*",
}
"""Patterns of varying words by kind. The reader keeps text in parentheses for later commands."""
_KNOWN = re.compile(rf"{_URL}|{_ID}|\b\d\d+\b")
_NOTICE = re.compile(r"stele: .+; (?:trying again \(\d+\), for|waiting for) \d+ s more")
"""Messages on standard error while a service does not answer. A page need not show them."""
_JOB = re.compile(r"(?P<command>[^&]+)&(?: (?P<variable>\w+)=\$!)?")
_END_OF_JOB = re.compile(r"kill \$(?P<variable>\w+); wait \$(?P=variable); (?P<rest>.+)")
EVAL_ENV = 'eval "$(stele stack env)"'
_SHELL = frozenset("|<>&;$")


class Reader:
    """Runs the commands of pages in a directory, which must be the working directory."""

    def __init__(self, directory: Path) -> None:
        self.differences: list[str] = []
        self._directory = directory
        self._known: dict[str, str] = {}
        self._background: list[Process] = []
        self._jobs: dict[str, Process] = {}
        bin_ = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "COLUMNS": "160"}
        self.environment["STELE"] = str(REPOSITORY)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the processes that the pages started."""
        for process in self._background:
            process.stop()
        if is_held(DEFAULT_DIRECTORY):
            bring_down(DEFAULT_DIRECTORY)

    def read(self, block: Block, not_run: Sequence[str] = ()) -> None:
        """Run a console block without the commands ``not_run``. Differences are collected."""
        for shown in commands(block):
            if shown.command not in not_run:
                self._try(block, shown)

    def _try(self, block: Block, shown: Shown) -> None:
        command = _KNOWN.sub(lambda word: self._known.get(word[0], word[0]), shown.command)
        patience_s = REPEAT_FOR_S if command.startswith(REPEATED) else 0
        end_s = time.monotonic() + patience_s
        wrong, printed = self._try_once(command, shown.output)
        while wrong and time.monotonic() < end_s:
            time.sleep(POLL_S)
            wrong, printed = self._try_once(command, shown.output)
        if wrong:
            place = f"{block.page}:{shown.line}"
            self.differences.append(f"{place}: $ {command}\n  {wrong}; it printed\n{printed}")

    def _try_once(self, command: str, output: Sequence[str]) -> tuple[str, str]:
        """Return the difference, empty if there is none, and the whole output."""
        code, printed = self._run(command)
        fails = any(line.startswith("stele: ") for line in output)
        if fails == (code == 0):
            return f"its exit status is {code}", printed
        return self._compare(output, printed.splitlines()), printed

    def _run(self, command: str) -> tuple[int, str]:
        if job := _JOB.fullmatch(command):
            return 0, self._run_in_background(job["command"], job["variable"])
        if command == EVAL_ENV:
            self._set_stack_variables()
            return 0, ""
        if ended := _END_OF_JOB.fullmatch(command):
            self._end(self._jobs[ended["variable"]])
            command = ended["rest"]
        words = shlex.split(command, comments=True)
        if words[0] == "stele" and not _SHELL & set(command):
            return run_here(words[1:])
        done = subprocess.run(
            ["sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._directory,
            env=self.environment,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def _set_stack_variables(self) -> None:
        """Set the variables of ``stele stack env``, as the shell does."""
        code, printed = run_here(["stack", "env"])
        assert code == 0, printed
        for line in printed.splitlines():
            keyword, _, rest = line.partition(" ")
            name, _, value = rest.partition("=")
            if keyword == "unset":
                self.environment.pop(name, None)
            else:
                self.environment[name] = "".join(shlex.split(value))

    def _end(self, job: Process) -> None:
        """Send SIGTERM to a job of a page, and wait until it has ended without an error."""
        code = job.stop(COMMAND_TIMEOUT_S)
        assert code == 0, job.tail()

    def _run_in_background(self, command: str, variable: str | None) -> str:
        """Run a job whose process id goes to a variable, or a service.

        A service keeps running after it has printed its address. Later commands get it as ``$NODE``.
        """
        output = self._directory / f"beside-{len(self._background)}"
        process = spawn(
            Program(
                output.name,
                ["sh", "-c", f"exec env {command}"],
                stdout=output.with_suffix(".out"),
                stderr=output.with_suffix(".err"),
                env=self.environment,
                cwd=self._directory,
            )
        )
        self._background.append(process)
        if variable:
            self._jobs[variable] = process
            return ""

        def announced() -> bool:
            assert process.poll() is None, f"{command} exited: {process.tail()}"
            return "\n" in process.stdout_of_this_run()

        wait_until(announced, f"the announcement of {command}", COMMAND_TIMEOUT_S)
        line = process.stdout_of_this_run().partition("\n")[0]
        self.environment["NODE"] = json.loads(line)["http"]
        return line

    def _compare(self, shown: Sequence[str], printed: Sequence[str]) -> str:
        """Return the difference of the output, and record the ids and addresses of this run."""
        if not shown:
            return ""
        left = [
            found
            for line in printed
            if (found := " ".join(line.split())) and not _NOTICE.fullmatch(found)
        ]
        skip = False
        for line in (" ".join(text.split()) for text in shown):
            if line == ANYTHING:
                skip = True
                continue
            names, pattern = pattern_of(line)
            fits = [(at, fit) for at, text in enumerate(left) if (fit := pattern.fullmatch(text))]
            if not fits or (fits[0][0] > 0 and not skip):
                return f"'{line}' is not there"
            at, first = fits[0]
            self._known.update(zip(names, first.groups(), strict=True))
            left, skip = left[at + 1 :], False
        return "" if skip or not left else f"'{left[0]}' is not shown"

    def use_stack(self) -> None:
        """Map ``$KAFKA`` and similar variables of the pages to the stack that they started."""
        stack = read_stack_file(DEFAULT_DIRECTORY)
        assert stack is not None, ["no page has started a stack", *self.differences]
        log = stack.service("metadata-log")
        assert log is not None
        self.environment["KAFKA"] = stack.environment["STELE_KAFKA_BOOTSTRAP"]
        self.environment["METADATA_LOG"] = log.url


def run_here(arguments: Sequence[str]) -> tuple[int, str]:
    """Run ``stele`` in this process. Return its exit status and its output."""
    printed = BytesIO()
    output = TextIOWrapper(printed, encoding="utf-8", write_through=True)
    with redirect_stdout(output), redirect_stderr(output):
        code = run(arguments)
    return code, printed.getvalue().decode()


async def execute(block: Block, names: dict[str, object]) -> None:
    """Run a Python block with these names. The block may use ``await``."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    source = "\n" * block.line + "\n".join(block.lines)
    code: CodeType = compile(source, block.page, "exec", flags=flags, dont_inherit=True)
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


def pattern_of(line: str) -> tuple[list[str], re.Pattern[str]]:
    """Return the words of a shown line that vary, and the line's pattern with a group for each."""
    names, pattern, at = list[str](), "", 0
    for word in _VARIES.finditer(line):
        kind = word.lastgroup
        assert kind is not None
        pattern += _literal(line[at : word.start()]) + _NAMES[kind]
        at = word.end()
        if kind != "number":
            names.append(word[0])
    return names, re.compile(pattern + _literal(line[at:]))


def _literal(text: str) -> str:
    return ".*".join(re.escape(part) for part in text.split(ANYTHING))
