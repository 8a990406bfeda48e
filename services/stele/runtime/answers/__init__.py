"""Types of the answers over HTTP. Services encode them, and clients decode the same types.

One module a service; what needs the whole domain stands apart from it: ``plans`` are of the coordinator,
``history`` and ``of_image`` are of metadata-log.
"""
