"""The token ring: who owns which range, who will, and how to get there in steps that keep quorums.

``tokens`` and ``ranges`` are the ground, ``strategy`` says who replicates a range, ``transition`` plans
a join, leave, replace or remove, ``quorum`` counts answers, ``allocation`` chooses tokens.
"""
