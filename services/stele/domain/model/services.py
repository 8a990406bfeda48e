"""Services, which are processes that read the log and are no nodes: facts, commands and image."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact

MAX_SERVICES: Final = 1024
"""Largest number of services, far more than a cluster runs. A process that restarts under new names
each time must not fill the state.
"""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service's process. Its id, such as ``coordinator/c-1``, names the service and the instance.

    It counts until it is forgotten, whether it runs or not. A process that returns must be able to
    continue to read the log.
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
    """Announce the release and the features of a service that has started."""

    of_services: ClassVar = True

    service_id: str
    supported_features: tuple[str, ...] = ()
    release_version: str = ""


class ForgetService(Command, frozen=True, tag="forget_service"):
    """Forget a process that never returns. A process that still runs announces itself again."""

    service_id: str


ServicesCommand = AnnounceService | ForgetService


class ServicesImage(msgspec.Struct, frozen=True):
    services: Map[str, Service] = Map()
