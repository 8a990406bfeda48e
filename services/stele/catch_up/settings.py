"""Settings of catch-up, beside those of every service."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from stele.runtime.settings import ServiceSettings


class CatchUpSettings(ServiceSettings, frozen=True, kw_only=True):
    """STELE_* variables; immutable. Other replicas are those of STELE_CATCH_UP_URLS."""

    data_dir: Annotated[Path, Meta(description="Folder of the replica's archive and identity.")] = (
        Path(".stele/catch-up")
    )
    dc: Annotated[str, Meta(min_length=1, description="Data center of the replica.")] = "dc1"
    rack: Annotated[str, Meta(min_length=1, description="Rack of the replica.")] = "r1"
    address: Annotated[
        str,
        Meta(
            description="URL that others reach the replica by; empty: where it listens, and 127.0.0.1 where"
            " that is 0.0.0.0."
        ),
    ] = ""
    snapshots_kept: Annotated[
        int,
        Meta(
            ge=2,
            le=1000,
            description="Newest snapshots that stay in any case; of older ones some are deleted.",
        ),
    ] = 4
    archive_store: Annotated[
        str,
        Meta(
            description="Where the archive is put too: s3://BUCKET/PREFIX or file:///PATH; empty: nowhere."
        ),
    ] = ""
    archive_store_endpoint: Annotated[
        str, Meta(description="URL of the server of S3's protocol; empty: that of AWS.")
    ] = ""
    archive_store_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Interval for copying new epochs into the store, in seconds.",
        ),
    ] = 60.0
    archive_store_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="A call to the store is given up after this; seconds, one more for each MB of a file.",
        ),
    ] = 30.0
    archive_store_keep_days: Annotated[
        float,
        Meta(
            ge=0,
            description="Epochs that were so old when the newest one came, and that no later ones need, are"
            " deleted from the store; 0: never.",
        ),
    ] = 0.0
    check_every_days: Annotated[
        float,
        Meta(
            ge=0,
            le=3650,
            description="The whole archive is read and checked so often, with a twentieth of a processor;"
            " 0: only when asked (stele log verify).",
        ),
    ] = 7.0
    sync_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=10,
            description="Epochs are on the replica's disk so long after they came; seconds.",
        ),
    ] = 0.2
