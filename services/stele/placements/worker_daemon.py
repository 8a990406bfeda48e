"""``python -m stele.placements.worker_daemon`` forks Spark's Python workers with all imports done.

Spark ends workers that were idle for a minute. Without this, the next batch would wait for a second
until new workers have imported what they need.
"""

import gc

from pyspark import daemon

from stele.placements import events, reports

PRELOADED = (events, reports)
"""Modules whose functions the workers run."""

if __name__ == "__main__":
    gc.freeze()  # a worker collects garbage after each batch, including all imported modules
    daemon.manager()
