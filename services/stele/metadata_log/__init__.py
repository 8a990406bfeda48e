"""metadata-log: takes commands over HTTP and from Kafka, decides, appends, answers; serves the past."""
