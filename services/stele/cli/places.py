"""Addresses of the services: from options, the environment, or a local stack's stack.json."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from stele.cli.errors import UnreachableError, UsageError

STACK_FILE = "stack.json"
LOCK_FILE = "stack.lock"
"""The process that runs a stack holds a lock on this file; the kernel releases it when it dies."""
DEFAULT_DIRECTORY = Path(".stele")
DIRECTORY_VARIABLE = "STELE_DIR"
URL_VARIABLE = "STELE_URL"
_PREFIX = "STELE_"
_SUFFIX = "_URLS"


class LocalService(msgspec.Struct, frozen=True):
    """One process of a local stack."""

    name: str
    url: str
    pid: int | None = None
    state: str = ""
    restarts: int = 0
    exit_code: int | None = None
    """Exit code of the previous run; a negative value is the signal that ended it."""


class BrokerProcess(msgspec.Struct, frozen=True):
    name: str
    address: str
    pid: int | None = None
    state: str = ""
    restarts: int = 0


class RedisProcess(msgspec.Struct, frozen=True):
    url: str
    pid: int | None = None
    state: str = ""
    restarts: int = 0


class StackFile(msgspec.Struct, frozen=True):
    """The file in which ``stele_harness.stack`` describes its processes."""

    pid: int
    environment: dict[str, str]
    brokers: tuple[BrokerProcess, ...]
    redis: RedisProcess
    services: tuple[LocalService, ...]

    def service(self, name: str) -> LocalService | None:
        return next((found for found in self.services if found.name == name), None)


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """Addresses by service name (``metadata-log``, ``coordinator`` ...), and their source."""

    urls: Mapping[str, tuple[str, ...]]
    source: str

    @property
    def look(self) -> str:
        """A hint for an unreachable service; empty if the addresses are not from a local stack."""
        return " See `stele stack status`." if self.source.endswith(STACK_FILE) else ""

    def of(self, service: str) -> tuple[str, ...]:
        """Return all addresses of a service. Raises UsageError when none is known."""
        found = self.urls.get(service, ())
        if found:
            return found
        raise UsageError(
            f"No address of {service} is known ({self.source}).",
            f"Set {_variable(service)}, or --dir to the directory of a running stack.",
        )


def stack_directory(typed: Path | None) -> Path:
    """Return the stack's directory: the given one, else STELE_DIR, else the default."""
    return typed or Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)


def told_by_shell(typed: Path | None) -> Mapping[str, str]:
    """Return the shell's variables; none if a stack's directory was given, since that wins."""
    return {} if typed else os.environ


def read_stack_file(directory: Path) -> StackFile | None:
    """Return the contents of a directory's stack.json, or None. Raises UsageError."""
    try:
        content = (directory / STACK_FILE).read_bytes()
    except OSError:
        return None
    try:
        return msgspec.json.decode(content, type=StackFile)
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{directory / STACK_FILE} is not readable: {error}.",
            "Stop the stack and remove the file.",
        ) from error


def told_or_of_stack(variable: str, typed: Path | None) -> str:
    """Return a variable of the given stack, else of the shell, else of the default stack."""
    stack = read_stack_file(stack_directory(typed))
    of_stack = {} if stack is None else stack.environment
    return told_by_shell(typed).get(variable) or of_stack.get(variable, "")


def find_places(
    given: tuple[str, ...], directory: Path, environment: Mapping[str, str]
) -> ServiceAddresses:
    """Return the addresses. Options win over the environment, and both over the stack's file.

    Raises UnreachableError when no address of the metadata-log is known.
    """
    stack = read_stack_file(directory)
    ended = stack if stack is not None and has_ended(directory, stack.pid) else None
    stack = None if ended else stack
    urls = dict(_urls_in(stack.environment)) if stack is not None else {}
    source, told = f"from {directory / STACK_FILE}", dict(_urls_in(environment))
    if "metadata-log" in told:
        source = "from STELE_*_URLS" + _unlike(stack, told, directory)
        if ended and told["metadata-log"] == dict(_urls_in(ended.environment)).get("metadata-log"):
            told = {}  # `stele stack env` set them for the stack that has ended
    urls.update(told)
    chosen = given or _split(environment.get(URL_VARIABLE, ""))
    if chosen:
        urls["metadata-log"] = tuple(address_of(url) for url in chosen)
        source = "from --url or STELE_URL"
    if "metadata-log" not in urls and ended:
        raise UnreachableError(
            f"The stack over {directory} is down: its process {ended.pid} has ended.",
            f"`stele stack up --dir {directory}` starts it again with its data.",
        )
    if "metadata-log" not in urls:
        raise UnreachableError(
            f"No cluster: {directory / STACK_FILE} does not exist and no address was given.",
            "Start one with `stele stack up`, or give --url http://HOST:PORT (or STELE_URL).",
        )
    return ServiceAddresses(urls, source)


def _unlike(stack: StackFile | None, told: Mapping[str, tuple[str, ...]], directory: Path) -> str:
    """Return a warning if the shell's addresses are not of the stack over ``directory``."""
    if (
        stack is None
        or dict(_urls_in(stack.environment)).get("metadata-log") == told["metadata-log"]
    ):
        return ""
    return (
        f", not of the stack that runs in {directory} "
        f'(eval "$(stele stack env --dir {directory})" takes its addresses)'
    )


def has_ended(directory: Path, pid: int) -> bool:
    """Return True if the process that wrote stack.json has ended.

    A process in another container is detected by its lock.
    """
    if is_held(directory):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def is_held(directory: Path) -> bool:
    """Return True while a stack runs in the directory."""
    try:
        with (directory / LOCK_FILE).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return False


def _urls_in(environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {
        name.removeprefix(_PREFIX).removesuffix(_SUFFIX).lower().replace("_", "-"): found
        for name, value in environment.items()
        if _is_of_a_service(name) and (found := _split(value))
    }


def says_where(variable: str) -> bool:
    """Return True if a shell variable directs the command line to a cluster."""
    return variable == URL_VARIABLE or _is_of_a_service(variable)


def _is_of_a_service(variable: str) -> bool:
    return variable.startswith(_PREFIX) and variable.endswith(_SUFFIX)


def _split(text: str) -> tuple[str, ...]:
    return tuple(address_of(part) for part in text.split(",") if part.strip())


def address_of(url: str) -> str:
    """Return an address with its scheme. Raises UsageError if it is invalid."""
    url = url.strip()
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is not a number
        is_address = False
    if not is_address:
        raise UsageError(f"'{url}' is not an address of a service.", "Write http://HOST:PORT.")
    return full.rstrip("/")


def _variable(service: str) -> str:
    return f"{_PREFIX}{service.upper().replace('-', '_')}{_SUFFIX}"
