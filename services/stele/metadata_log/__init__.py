"""metadata-log: receives commands over HTTP and Kafka, decides, appends, answers, and serves the
past.
"""
