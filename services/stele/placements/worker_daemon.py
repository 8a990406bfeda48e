"""``python -m stele.placements.worker_daemon`` forks Spark's Python workers, which then have all imported.

Spark ends workers that were idle for a minute; the next batch would wait for a second until others have
imported what they need.
"""

import gc

from pyspark import daemon

from stele.placements import events, reports

PRELOADED = (events, reports)
"""Whose functions the workers run."""

if __name__ == "__main__":
    gc.freeze()  # a worker collects garbage after each batch, among all that was imported
    daemon.manager()
