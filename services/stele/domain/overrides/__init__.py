"""An operator's override: a state that takes the place of the log's own, as facts of an epoch like others."""
