"""From the topics' bytes to columns, in the JVM: the writer's schema by fingerprint, then Avro."""

import json
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.avro.functions import from_avro

from stele.log.schemas import HEADER_BYTES, load_schemas
from stele.log.state_ids import STATE_ID_BYTES

UNREADABLE = "stele-unreadable:"
"""Begins the message of an error that no restart will cure; see ``failures``."""


def decode(source: DataFrame) -> DataFrame:
    """Kafka rows (topic, offset, value) to the columns of ``fold.LogRecord`` and ``cluster``.

    ``changes`` is the JSON of ``fold.Change``s. A record of an unknown schema fails the query; one
    whose body does not decode has ``readable`` false, since a loser may be anything.
    """
    header = sql.hex(sql.substring("value", 1, HEADER_BYTES))
    previous = sql.substring("value", HEADER_BYTES + 1, STATE_ID_BYTES)
    epoch = sql.col("record")
    decoded = source.select(
        sql.regexp_extract("topic", r"^stele\.(.+)\.epochs$", 1).alias("cluster"),
        "offset",
        previous.alias("prev_state_id"),
        _record(header).alias("record"),
    )
    plain = ["state_id", "request_id", "command", "actor", "reason", "origin", "at_ms"]
    return decoded.select(
        "cluster",
        "offset",
        "prev_state_id",
        epoch["epoch"].isNotNull().alias("readable"),
        sql.conv(sql.hex(epoch["epoch"]), 16, 10).cast("long").alias("epoch"),
        *(epoch[name].alias(name) for name in plain),
        sql.to_json(epoch["required_features"]).alias("required_features"),
        sql.to_json(_changes(epoch["facts"])).alias("changes"),
    )


def _record(header: Column) -> Column:
    """The decoded Epoch; the newest schema's shape whichever schema wrote it."""
    schemas = load_schemas()
    newest = _text(schemas.newest["Epoch"])
    options = {
        "avroSchema": newest,
        "mode": "PERMISSIVE",
        "enableStableIdentifiersForUnionType": "true",
    }
    body = sql.expr(f"substring(value, {HEADER_BYTES + 1})")
    known = [(h, s) for h, (name, s) in schemas.by_header.items() if name == "Epoch"]
    unknown = sql.raise_error(
        sql.concat(
            sql.lit(f"{UNREADABLE} At offset "),
            sql.col("offset").cast("string"),
            sql.lit(" of "),
            sql.col("topic"),
            sql.lit(": no schema of Epoch has fingerprint "),
            sql.coalesce(header, sql.lit("(none)")),
            sql.lit(". Upgrade this process, or restore the topic."),
        )
    )
    first, *rest = [
        (header == h.hex().upper(), from_avro(body, _text(s), options)) for h, s in known
    ]
    chosen = reduce(lambda column, case: column.when(*case), rest, sql.when(*first))
    return chosen.otherwise(unknown)


def _changes(facts: Column) -> Column:
    """The placements' facts of an epoch in their order, others left out."""

    def placement_fact(fact: Column) -> Column:
        return (
            fact["member_placementchanged"].isNotNull()
            | fact["member_placementdropped"].isNotNull()
        )

    def project(fact: Column) -> Column:
        changed, dropped = fact["member_placementchanged"], fact["member_placementdropped"]
        return sql.struct(
            sql.coalesce(changed["placement"], dropped["placement"]).alias("placement"),
            dropped.isNotNull().alias("dropped"),
            changed["removed"].alias("removed"),
            changed["added"].alias("added"),
        )

    return sql.transform(sql.filter(facts, placement_fact), project)


def _text(schema: object) -> str:
    """A schema as JSON, defaults included, without what fastavro adds for itself."""
    return json.dumps(_plain(schema))


def _plain(schema: object) -> object:
    if isinstance(schema, dict):
        return {k: _plain(v) for k, v in schema.items() if not k.startswith("__")}
    return [_plain(part) for part in schema] if isinstance(schema, list) else schema
