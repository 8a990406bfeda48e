"""``stele demo``: a real cluster on this machine, changed and hurt under load, then checked.

``scenario`` is the table of steps, ``steps`` holds one file a step, ``scene`` is what they share.
"""
