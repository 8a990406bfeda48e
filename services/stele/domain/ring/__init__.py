"""The token ring: owners of ranges, planned owners, and the steps between them that keep quorums.

A placement is ``columns`` of ``replicas`` by node ``numbers``, over ``tokens`` and ``ranges``.
``strategy`` computes the replicas of a range. ``transition`` plans a join, leave, replace or
remove. ``locks`` shows which of these may run at once. ``changes`` splits their rows into facts.
``quorum`` counts answers. ``allocation`` chooses tokens.
"""
