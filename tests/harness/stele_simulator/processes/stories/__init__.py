"""Stories: scenarios as text, with the epochs and placements that must follow.

``telling`` reads and plays them; ``asked``, ``happens``, ``waited`` and ``expected`` have the sentences.
"""
