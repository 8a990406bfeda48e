"""Services: processes that read the log and are no nodes; facts, commands and image."""

from typing import ClassVar, Final

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact

MAX_SERVICES: Final = 1024
"""Far more than a cluster runs; a process that restarts under ever new names must not fill the state."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A process by its id, such as ``coordinator/c-1``: the service's name and the instance's.

    It counts until it is forgotten, running or not: who comes back must be able to read on.
    """

    service_id: str
    supported_features: tuple[str, ...] = ()
    release_version: str = ""


class ServiceChanged(Fact, frozen=True):
    service: Service


class ServiceForgotten(Fact, frozen=True):
    service_id: str


ServicesFact = ServiceChanged | ServiceForgotten


class AnnounceService(Command, frozen=True, tag="announce_service", kw_only=True):
    """A service that started tells its release and features."""

    of_services: ClassVar = True

    service_id: str
    supported_features: tuple[str, ...] = ()
    release_version: str = ""


class ForgetService(Command, frozen=True, tag="forget_service"):
    """The process never comes back. One that still runs announces itself again."""

    service_id: str


ServicesCommand = AnnounceService | ForgetService


class ServicesImage(msgspec.Struct, frozen=True):
    services: Map[str, Service] = Map()
