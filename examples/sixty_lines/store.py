"""A key-value store of sixty lines that is a member of a Stele cluster, by STELE_* variables.

A value begins with its client's time in eight bytes. In a table with columns, a JSON row follows.
"""

import sqlite3

from starlette.responses import Response
from starlette.routing import Route

from stele.agent import Row, request_of, run_store

MAKE = """
pragma journal_mode = wal; pragma synchronous = full;
create table if not exists owner (host_id text);
create table if not exists rows (data text, token int, key blob, value blob, primary key (data, token, key))
without rowid;"""
IN_SPAN = "data = ? and token > ? and token <= ?"
NEWER = "on conflict do update set value = excluded.value where excluded.value > rows.value"


class Shelf:
    def __init__(self, path):
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.executescript(MAKE)

    def ask(self, text, *values):
        return self.db.execute(text, values).fetchall()

    def host_id(self):
        return "".join(host_id for (host_id,) in self.ask("select host_id from owner"))

    def claim(self, host_id):
        self.ask("insert into owner values (?)", host_id)

    def data_ids(self):
        return [data for (data,) in self.ask("select distinct data from rows")]

    def scan(self, span, after, limit):
        text = f"select token, key, value from rows where {IN_SPAN} and (token, key) > (?, ?)"
        values = (*span.bounds(), *(after or (span.start, b"")), limit)
        return [Row(*row) for row in self.ask(f"{text} order by token, key limit ?", *values)]

    def merge(self, data_id, rows):
        text = f"insert into rows values (?, ?, ?, ?) {NEWER}"
        self.ask("begin")
        with self.db:  # commits, or rolls back
            self.db.executemany(text, [(data_id, *row) for row in rows])

    def delete(self, span, limit):
        doomed = f"select token, key from rows where {IN_SPAN} limit ?"
        text = f"delete from rows where data = ? and (token, key) in ({doomed})"
        return self.db.execute(text, (span.keyspace, *span.bounds(), limit)).rowcount

    def size_bytes(self, span):
        size = "coalesce(sum(length(key) + length(value)), 0)"
        return self.ask(f"select {size} from rows where {IN_SPAN}", *span.bounds())[0][0]


def routes(member, shelf):
    async def put(request):
        routed, value = request_of(request), await request.body()
        async with member.request(routed):
            member.check_columns(routed, value[8:])
            row = Row(routed.token, request.path_params["key"].encode(), value)
            shelf.merge(routed.data_id, [row])
        return Response()

    async def get(request):
        routed, key = request_of(request), request.path_params["key"].encode()
        async with member.request(routed):
            text = "select value from rows where data = ? and token = ? and key = ?"
            found = shelf.ask(text, routed.data_id, routed.token, key)
        return Response(found[0][0] if found else b"")

    path = "/v1/values/{key:path}"
    return [Route(path, put, methods=["PUT"]), Route(path, get, methods=["GET"])]


if __name__ == "__main__":
    raise SystemExit(run_store("shelf", Shelf, routes))
