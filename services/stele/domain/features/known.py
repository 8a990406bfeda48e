"""All settings of the log that this build reads."""

from typing import Final

from stele.domain.archive.model import LIMITS as ARCHIVE
from stele.domain.cdc.model import CDC_MARGIN_S, CDC_RETENTION_S
from stele.domain.features.model import Setting
from stele.domain.requests.model import FINISHED, GENERATIONS, HISTORY_S
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
"""The settings that this build reads, by name. Others are stored for their readers."""
