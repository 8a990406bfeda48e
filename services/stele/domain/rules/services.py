"""The domain of services and the features that they support, for the registry."""

import re
from collections.abc import Iterable
from typing import Final

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.model.services import (
    MAX_SERVICES,
    AnnounceService,
    ForgetService,
    Service,
    ServiceChanged,
    ServiceForgotten,
    ServicesFact,
    ServicesImage,
)
from stele.domain.registry_entry import Domain
from stele.domain.rules.membership import check_build
from stele.domain.tables import Json, sorted_values

SERVICE_ID: Final = re.compile(r"[a-z][a-z-]{0,31}/[A-Za-z0-9._-]{1,128}")


def announce_service(context: Context, command: AnnounceService) -> Decision:
    image = context.image
    service_id, services = command.service_id, image.services.services
    if not SERVICE_ID.fullmatch(service_id):
        return Rejection(
            "bad_name",
            f"'{service_id[:80]}' is no id of a service.",
            "Use the service's name, '/' and STELE_INSTANCE_ID, such as coordinator/c-1.",
        )
    required(
        check_build(
            image, f"service '{service_id}'", command.supported_features, command.release_version
        )
    )
    # The limit applies to new ids only, so a known service can always announce a new release.
    if service_id not in services and len(services) >= MAX_SERVICES:
        return Rejection(
            "too_many_services",
            f"{len(services)} services are known, which is the limit.",
            "Forget those that never come back: `stele features forget`. Give each process a"
            " STELE_INSTANCE_ID that it keeps.",
        )
    service = Service(
        service_id=service_id,
        # Sorted, so that another order of the same features is no change.
        supported_features=tuple(sorted(command.supported_features)),
        release_version=command.release_version,
    )
    # Services announce themselves at each start. An unchanged one must not add to the log's state.
    return () if services.get(service_id) == service else (ServiceChanged(service),)


def forget_service(context: Context, command: ForgetService) -> Decision:
    if command.service_id not in context.image.services.services:
        return Rejection(
            "unknown_service",
            f"There is no service '{command.service_id[:80]}'.",
            "`stele features list` shows them.",
        )
    return (ServiceForgotten(command.service_id),)


def service_changed(image: ServicesImage, fact: ServiceChanged) -> ServicesImage:
    return ServicesImage(image.services.set(fact.service.service_id, fact.service))


def service_forgotten(image: ServicesImage, fact: ServiceForgotten) -> ServicesImage:
    return ServicesImage(image.services.delete(fact.service_id))


def to_facts(image: ServicesImage) -> Iterable[ServicesFact]:
    return (ServiceChanged(service) for service in sorted_values(image.services))


def rows(image: ServicesImage) -> Json:
    return {"services": image.services}


DOMAIN = Domain(
    name="services",
    empty=ServicesImage(),
    decide={AnnounceService: announce_service, ForgetService: forget_service},
    apply={ServiceChanged: service_changed, ServiceForgotten: service_forgotten},
    to_facts=to_facts,
    rows=rows,
)
