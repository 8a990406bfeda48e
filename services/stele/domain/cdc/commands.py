"""The coordinator's commands about CDC generations, each guarded by its term."""

from typing import ClassVar

from stele.domain.base import Command


class PublishCdcGeneration(Command, frozen=True, tag="publish_cdc_generation"):
    """The oldest generation that is not published yet is known wherever writes are taken."""

    of_services: ClassVar = True

    term: int
    generation_id: str


class ForgetCdcGeneration(Command, frozen=True, tag="forget_cdc_generation"):
    """The one after this has held for longer than the retention."""

    of_services: ClassVar = True

    term: int
    generation_id: str


CdcCommand = PublishCdcGeneration | ForgetCdcGeneration
