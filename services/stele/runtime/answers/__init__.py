"""Types of the answers over HTTP. Services encode them, and clients decode the same types.

Each service has a module. Types that need the whole domain are in separate modules: ``plans`` for the
coordinator, ``history`` and ``of_image`` for the metadata-log.
"""
