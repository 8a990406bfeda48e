"""Answers that a table is better with, and does without when their service is silent."""

from __future__ import annotations

import contextlib
from typing import TypeVar

from stele.cli.client import Client
from stele.cli.errors import CliError

T = TypeVar("T")


def ask(client: Client, service: str, path: str, kind: type[T], **params: object) -> T | None:
    """One round over the service's addresses, with no retries; None when nobody answers."""
    try:
        urls = client.places.of(service)
    except CliError:
        return None
    query = "&".join(f"{key}={value}" for key, value in params.items() if value is not None)
    for url in urls:
        try:
            return client.get_one(f"{url}{path}{'?' if query else ''}{query}", kind)
        except CliError as error:
            client.silent[service] = error.message
    return None


def ask_each(client: Client, service: str, path: str, kind: type[T]) -> dict[str, T]:
    """What each address of a service answers, asked once; those are left out that do not."""
    found = dict[str, T]()
    for url in client.places.urls.get(service, ()):
        with contextlib.suppress(CliError):
            found[url] = client.get_one(f"{url}{path}", kind)
    return found


def is_known(client: Client, service: str) -> bool:
    """Whether there is an address to ask at: else its silence says nothing."""
    return bool(client.places.urls.get(service))
