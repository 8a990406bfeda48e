"""All settings of the log that this build reads."""

from typing import Final

from stele.domain.archive.limits import LIMITS as ARCHIVE
from stele.domain.cdc.limits import CDC_MARGIN_S, CDC_RETENTION_S
from stele.domain.features.counts import Setting
from stele.domain.requests.limits import FINISHED, GENERATIONS, HISTORY_S
from stele.domain.tablets.limits import LIMITS as TABLETS
from stele.domain.topology.limits import LIMITS

KNOWN: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in (
        *(GENERATIONS, FINISHED, HISTORY_S),
        *LIMITS,
        *(CDC_MARGIN_S, CDC_RETENTION_S),
        *TABLETS,
        *ARCHIVE,
    )
}
"""The settings that mean something, by name; others are kept for whoever reads them."""
