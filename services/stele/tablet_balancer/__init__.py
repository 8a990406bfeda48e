"""tablet-balancer: asks for moves of tablets, until every node has its share of every table.

It keeps nothing: what is where and what moves is in the log, who is up is in the acknowledgements. Several may
run; what two ask for at once is taken once.
"""
