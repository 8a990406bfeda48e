"""The compacted topic ``placements``: each key's newest row, then a marker of the epoch reached.

Keys are ``<cluster>/<placement>/<start token>``; the marker's is ``<cluster>/epoch``. A row that is gone
leaves a tombstone. A reader that has met a marker holds the placements of exactly that epoch.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql


def topic_records(rows: DataFrame) -> DataFrame:
    """Columns topic, key, value in the order in which they must be sent: markers after rows."""
    current = rows.where("kind = 'current'").select(
        "cluster",
        sql.lit(0).alias("rank"),
        sql.concat_ws("/", "cluster", "placement", sql.col("start").cast("string")).alias("key"),
        sql.when(
            ~sql.col("gone"),
            sql.to_json(
                sql.struct("epoch", "state_id", "from_epoch", "start", "end", "reads", "writes")
            ),
        ).alias("value"),
    )
    marker = (
        rows.where("kind = 'epoch'")
        .groupBy("cluster")
        .agg(sql.max("epoch").alias("epoch"), sql.max_by("state_id", "epoch").alias("state_id"))
        .select(
            "cluster",
            sql.lit(1).alias("rank"),
            sql.concat_ws("/", "cluster", sql.lit("epoch")).alias("key"),
            sql.to_json(sql.struct("epoch", "state_id")).alias("value"),
        )
    )
    topic = sql.concat(sql.lit("stele."), sql.col("cluster"), sql.lit(".placements"))
    return (
        current.unionByName(marker)
        .coalesce(1)
        .sortWithinPartitions("cluster", "rank", "key")
        .select(topic.alias("topic"), "key", "value")
    )


def write_topic(rows: DataFrame, bootstrap: str) -> None:
    """Send a batch's records. Sent again after a crash they are the same, so nothing changes."""
    (
        topic_records(rows)
        .write.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.acks", "all")
        .option("kafka.enable.idempotence", "true")
        .option("kafka.delivery.timeout.ms", "60000")
        .save()
    )
