"""tablet-balancer: requests moves of tablets until each node has its share of each table.

It stores nothing. The log has the places of tablets and their moves, and acks tell which nodes are
up. Several instances may run: if two request the same move, the log takes one of them.
"""
