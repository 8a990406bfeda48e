"""What services answer over HTTP, as types: the service encodes them and whoever asks decodes the same ones.

One module a service; what needs the whole domain stands apart from it: ``plans`` are of the coordinator,
``history`` and ``of_image`` are of metadata-log.
"""
