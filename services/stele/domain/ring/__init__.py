"""The token ring: who owns which range, who will, and how to get there in steps that keep quorums.

``tokens`` and ``ranges`` are the ground: a placement is ``columns`` of ``replicas`` by node ``numbers``.
``strategy`` says who replicates a range, ``transition`` plans a join, leave, replace or remove, ``locks``
says which of these may run at once, ``changes`` how their rows travel in facts, ``quorum`` counts answers,
``allocation`` chooses tokens.
"""
