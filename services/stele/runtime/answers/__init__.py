"""What services answer over HTTP, as types: the service encodes them and whoever asks decodes the same ones.

One module a service; what needs the whole domain stands apart from it: ``plans`` are of the coordinator,
``history`` is of metadata-log. The outcome of a command stands with the command, in ``metadata_log/api.py``.
"""
