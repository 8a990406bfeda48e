"""One way to run a cluster for a test.

``processes`` runs services as processes on a given broker, ``rolling`` changes their builds,
``compose`` runs the containers of the compose file, and ``in_memory`` serves a metadata-log without
any process. ``load`` is the load of all of them; it checks each answer.
"""
