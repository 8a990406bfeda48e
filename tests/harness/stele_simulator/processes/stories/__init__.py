"""Stories: scenarios as text, with the epochs and placements that must follow.

``player`` reads and plays them; ``requests``, ``events``, ``waits`` and ``expectations`` have the sentences.
"""
