"""Clients that write and read single columns while the schema changes, and checks of their observations.

C1: each column id is a register: a read gives the last acknowledged value, and no other column's.
C2: a request is served by columns that the table had, and is refused for no other reason than these.
C3: versions of a table only go forward, for a client that names one and for the requests of a key.

The checks take columns and ids from the log's images. They use neither the encoding of rows nor the
merge of their versions.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from stele.domain.image import Image
from stele.domain.model.schema import AnyChange, ColumnDefinition, TableCreation, TypeCreation
from stele.domain.model.schema_objects import Column, ColumnKind, TableSchema, TypeField
from stele.domain.routed import TABLE_VERSION
from stele.runtime.answers.common import ErrorBody, code_in
from stele_simulator.messages import KvOp, text_in
from stele_simulator.processes.data import (
    ANSWER_S,
    COLUMNS_TYPES,
    NO_KEY,
    NOT_FOUND,
    OK,
    PUT,
    REFUSED,
    THINK_S,
    UNKNOWN,
    DataClient,
    Rows,
)

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

REGISTERS: Final = "C1"
FITS: Final = "C2"
FORWARD: Final = "C3"
KEYS: Final = 6
BAD_SHARE: Final = 0.15
"""Share of requests that must be refused."""
LEAST_SHARE: Final = 0.5
"""Share of requests that name the version of the table that the client knows."""
READ_LOG_S: Final = 0.9
"""A node that lacks columns reads the log for about a second before it answers without them."""
BAD_REQUEST: Final = 400
UNAVAILABLE: Final = 503
OF_COLUMNS: Final = frozenset({"unknown_column", "dropped_column", "wrong_type"})
NO_COLUMN: Final = "no_such_column"
EPOCH: Final = "x-stele-epoch"
INT: Final = "int"


def columned(tables: Sequence[str]) -> Iterator[AnyChange]:
    """Yield the creation of these tables, with a type in each keyspace."""
    for table in tables:
        keyspace = table.partition(".")[0]
        yield TypeCreation(name=f"{keyspace}.person", fields=(TypeField("name", "text"),))
        key = ColumnDefinition(name="id", type="text", kind=ColumnKind.PARTITION_KEY)
        others = [ColumnDefinition(name=n, type=type_) for n, type_ in COLUMNS_TYPES.items()]
        captured = {"cdc": "{'enabled': 'true'}"}
        yield TableCreation(name=table, columns=(key, *others), parameters=captured)


class Target(NamedTuple):
    """A column of the data of a table."""

    data_id: str
    column_id: int


class OpenWrite:
    """A write without a known end. It may reach each column that has its name at some time."""

    def __init__(self, table: str, column: str, operation: KvOp) -> None:
        self.table = table
        self.column = column
        self.operation = operation
        self.numbers: dict[Target, int] = {}


class ColumnWitness:
    """Records requests for columns and their answers, with the columns of each version of a table."""

    def __init__(self, world: "World") -> None:
        self.refused = 0
        """Requests that were refused for their columns."""
        self._world = world
        self._rows = Rows()
        self._targets: dict[tuple[str, str], set[Target]] = defaultdict(set)
        """By table and name of a column: all columns that ever had the name."""
        self._open: dict[OpenWrite, None] = {}
        self._newest: dict[tuple[str, str], int] = {}
        """By data id and key: the newest version of the table that an answer had."""

    # -- the log --

    def changed(self, after: Image) -> None:
        """One more epoch."""
        for table_id, columns in after.schema.schemas.items():
            table = after.schema.tables[table_id]
            name = after.schema.full_name(table)
            for column in columns.columns:
                self._targets[name, column.name].add(Target(table.data_id, column.column_id))
        for write in self._open:
            self._register(write)

    def schema_of(self, table: str, epoch: int = -1) -> tuple[str, TableSchema] | None:
        """Return data id and columns of a table at an epoch, or now."""
        witness = self._world.witness
        image = witness.image if epoch < 0 else witness.image_of_epoch(epoch)
        found = None if image is None else image.schema.table_named(table)
        columns = None if image is None or not found else image.schema.schemas.get(found.table_id)
        return None if found is None or columns is None else (found.data_id, columns)

    def fits(self, table: str, epoch: int, name: str, value: object) -> bool:
        """Return whether the table has the column at an epoch, with a type that has the value."""
        known, image = self.schema_of(table, epoch), self._world.witness.image_of_epoch(epoch)
        column = None if known is None else known[1].column(name)
        if image is None or column is None or (column.type == INT) != isinstance(value, int):
            return False
        if not isinstance(value, dict):
            return True
        keyspace = table.partition(".")[0]
        types = [
            image.schema.type_named(f"{keyspace}.{each}") for each in column.parsed.user_types()
        ]
        return {*value} <= {field.name for each in types if each for field in each.fields}

    # -- writes --

    def writes(self, table: str, column: str, operation: KvOp) -> OpenWrite:
        write = OpenWrite(table, column, operation)
        self._open[write] = None
        self._register(write)
        return write

    def _register(self, write: OpenWrite) -> None:
        self._rows.age = self._world.rows.age
        for target in self._targets[write.table, write.column] - write.numbers.keys():
            operation = replace(write.operation, key=_register_of(target, write.operation.key))
            write.numbers[target] = self._rows.begins(operation)

    def ended(self, write: OpenWrite, target: Target | None) -> None:
        """Note that a write is done at ``target``; None: that it is surely not done at all."""
        del self._open[write]
        self._rows.age = self._world.rows.age
        now_s = self._world.kernel.now_s
        for each, number in write.numbers.items():
            key = _register_of(each, write.operation.key)
            done = replace(write.operation, key=key, ended=now_s, done=each == target)
            self._rows.ends(number, replace(done, known=True))

    # -- reads --

    def read(self, data_id: str, began: KvOp, age: int, found: Mapping[int, str | None]) -> None:
        """Note the values of a row by column id. The read began at ``age``."""
        now_s = self._world.kernel.now_s
        for column_id, value in found.items():
            key = _register_of(Target(data_id, column_id), began.key)
            done = replace(began, key=key, ended=now_s, value=value, done=True, known=True)
            self._rows.age = age
            number = self._rows.begins(done)
            self._rows.age = self._world.rows.age
            self._rows.ends(number, done)

    @property
    def done(self) -> int:
        """Number of values that clients wrote or read."""
        return self._rows.writes + self._rows.reads

    # -- versions --

    def newest(self, data_id: str, key: str) -> int:
        return self._newest.get((data_id, key), 0)

    def answered(self, data_id: str, key: str, version: int) -> None:
        self._newest[data_id, key] = max(version, self.newest(data_id, key))

    def demand(self, holds: bool, rule: str, expected: str, found: str) -> None:
        """Check an answer, unless epochs were lost meanwhile."""
        if self._world.stores.age() >= 0:
            self._world.demand(holds, rule, expected, found)

    def check(self) -> None:
        """Check at rest that each column is a register."""
        self._rows.age = self._world.rows.age
        with self._world.checking(REGISTERS):
            self._world.checks += self._rows.check()


def _register_of(target: Target, key: str) -> str:
    return f"{target.data_id}/{key}, column {target.column_id}"


class Request(NamedTuple):
    """A request: what the client knew of the table, and the least version that it names, or 0.

    ``incarnation`` is that of the node's process when the request began.
    """

    node: str
    incarnation: int
    key: str
    data_id: str
    columns: TableSchema
    least: int
    newest: int
    began_s: float


class ColumnClient(DataClient):
    """Writes single columns of a table with one key column, and reads its rows."""

    def __init__(self, name: str, world: "World", table: str, node: str = "") -> None:
        super().__init__(name, world)
        self._table = table
        self._node_name = node

    async def _work(self) -> None:
        while self.world.callers_work:
            await self.sleep(2 * THINK_S * self.chance.random())
            key = f"key{self.chance.randrange(KEYS)}"
            draw = self.chance.random()
            if draw < BAD_SHARE:
                await self._write_wrongly(key)
            elif draw < 0.5:
                await self._write(key)
            else:
                await self._read(key)

    async def read_all(self, keys: set[str]) -> None:
        """Read each of these keys at any node."""
        self._node_name = ""
        await super().read_all(keys)

    def _request(self, key: str) -> Request | None:
        """Return a request by the table's present columns; None while there is no table."""
        witness = self.world.columns
        known = witness.schema_of(self._table)
        if known is None:
            return None
        data_id, columns = known
        least = columns.version if self.chance.random() < LEAST_SHARE else 0
        newest, node = witness.newest(data_id, key), self._node()
        machine, now_s = self.world.machines.get(node), self.world.kernel.now_s
        incarnation = -1 if machine is None else machine.incarnation
        return Request(node, incarnation, key, data_id, columns, least, newest, now_s)

    async def _write(self, key: str) -> bool:
        request = self._request(key)
        columns = [] if request is None else [*request.columns.of_kind(ColumnKind.REGULAR)]
        if request is None or not columns:
            return False
        column = self.chance.choice(columns)
        return await self._put(request, column.name, *self._value(column))

    async def _write_wrongly(self, key: str) -> None:
        """Send an unknown column, a dropped one, or a value of another type."""
        request = self._request(key)
        if request is None:
            return
        there = {column.name for column in request.columns.columns}
        dropped = {column.name for column in request.columns.dropped_columns} - there
        numbers = {column.name for column in request.columns.columns if column.type == INT}
        name = self.chance.choice([NO_COLUMN, *sorted(dropped), *sorted(numbers)])
        text = self._text()
        await self._put(request._replace(least=request.columns.version), name, text, text)

    async def _put(self, request: Request, name: str, value: object, shown: str) -> bool:
        witness = self.world.columns
        began = replace(self._begun(request.key, shown), node=request.node)
        pending = witness.writes(self._table, name, began)
        status, content, _ = await self._send(request, {name: value})
        if status == OK:
            target = self._is_served(request, name, value, shown, content)
            if target is not None:
                witness.ended(pending, target)
        elif status >= REFUSED and code_in(content) != UNKNOWN:
            self._is_refused(request, status, content, name, value)
            witness.ended(pending, None)
        return status == OK

    async def _read(self, key: str) -> bool:
        request = self._request(key)
        if request is None:
            return True
        witness, age = self.world.columns, self.world.rows.age
        began = replace(self._begun(key, None), node=request.node)
        status, content, headers = await self._send(request, None)
        if status == OK:
            found = self._document(request, msgspec.json.decode(content), headers)
            if found is not None:
                data_id, values = found
                witness.read(data_id, began, age, values)
            return True
        if status == NOT_FOUND and code_in(content) == NO_KEY:
            now = witness.schema_of(self._table)
            if now is not None and now[0] == request.data_id:
                # Columns that were added meanwhile have no value either.
                ids = [column.column_id for column in request.columns.of_kind(ColumnKind.REGULAR)]
                witness.read(request.data_id, began, age, dict.fromkeys(ids))
            return True
        if status >= REFUSED:
            self._is_refused(request, status, content, "", None)
        return False

    # -- answers --

    def _is_served(
        self, request: Request, name: str, value: object, shown: str, content: bytes
    ) -> Target | None:
        """Check the version of an acknowledged write, and return the column that was written."""
        written = msgspec.json.decode(content)
        version, witness = written["table_version"], self.world.columns
        known = witness.schema_of(self._table, written["epoch"])
        found = None if known is None else known[1].column(name)
        witness.demand(
            known is not None and known[1].version == version,
            FITS,
            f"{request.key} is written by the columns of epoch {written['epoch']}",
            f"the answer has table version {version}",
        )
        witness.demand(
            witness.fits(self._table, version, name, value),
            FITS,
            f"a write of {name} = {value} by version {version} is refused, unless it has that column",
            f"it was acknowledged; there the column is {found}",
        )
        if known is None or found is None:
            return None
        self._goes_forward(request, version, known[0])
        self.world.changes.wrote(self._table, request.key, shown, request.began_s, written)
        return Target(known[0], found.column_id)

    def _is_refused(
        self, request: Request, status: int, content: bytes, name: str, value: object
    ) -> None:
        """Check that a request is refused for its columns, or because too few nodes answer."""
        witness, code = self.world.columns, code_in(content)
        if code not in OF_COLUMNS:
            witness.demand(
                status in (REFUSED, UNAVAILABLE, NOT_FOUND),
                FITS,
                f"{self._table}/{request.key} is served, or too few nodes answer",
                f"status {status}, {code}",
            )
            return
        details = msgspec.json.decode(content, type=ErrorBody).details
        version = int(str(details["table_version"]))
        witness.refused += 1
        witness.demand(
            not witness.fits(self._table, version, name, value),
            FITS,
            f"{name} = {value}, which fits version {version} of {self._table}, is accepted",
            f"it gets {code}",
        )
        witness.demand(
            version >= request.columns.version or self._cannot_read_the_log(request),
            FITS,
            f"{request.node} reads the log, which had version {request.columns.version}, before it"
            " refuses",
            f"it refused {name} by version {version} at once",
        )
        # One node refuses alone, so no later request through another node can find its version.
        self._check_forward(request, version, request.data_id)

    def _document(
        self, request: Request, row: dict[str, Any], headers: Mapping[str, str]
    ) -> tuple[str, dict[int, str | None]] | None:
        """Check a row's columns, and return its data id and its values by column id."""
        version, witness = int(headers[TABLE_VERSION]), self.world.columns
        known, routed = (
            witness.schema_of(self._table, each) for each in (version, int(headers[EPOCH]))
        )
        if known is None or routed is None:
            return None
        names = {column.name for column in known[1].columns}
        witness.demand(
            row.keys() == names,
            FITS,
            f"a row of version {version} has the columns {sorted(names)}",
            f"it has {sorted(row)}",
        )
        self._goes_forward(request, version, routed[0])
        regular = known[1].of_kind(ColumnKind.REGULAR)
        return routed[0], {c.column_id: text_in(row.get(c.name)) or None for c in regular}

    def _goes_forward(self, request: Request, version: int, data_id: str) -> None:
        self._check_forward(request, version, data_id)
        if data_id == request.data_id:
            self.world.columns.answered(data_id, request.key, version)

    def _check_forward(self, request: Request, version: int, data_id: str) -> None:
        witness = self.world.columns
        witness.demand(
            version >= request.least,
            FORWARD,
            f"a client that names version {request.least} is served by it or a newer one",
            f"it was served by version {version}",
        )
        if data_id == request.data_id:
            witness.demand(
                version >= request.newest or self._cannot_read_the_log(request),
                FORWARD,
                f"{request.key} is not answered by a version before {request.newest}, which it was"
                " answered by before",
                f"it was answered by version {version} through {request.node} at once",
            )

    def _cannot_read_the_log(self, request: Request) -> bool:
        """Return whether the node has tried to read the log for long, or its reader has stopped."""
        node, waited_s = (
            self.world.machines.get(request.node),
            self.world.kernel.now_s - request.began_s,
        )
        has_stopped = node is None or node.failure or node.incarnation != request.incarnation
        return bool(has_stopped) or waited_s > READ_LOG_S

    # -- requests --

    def _value(self, column: Column) -> tuple[object, str]:
        """Return a new value for a column, and the text that identifies it in a read."""
        text = self._text()
        if column.type == INT:
            number = int.from_bytes(self.name.encode()[-2:]) * 10_000 + self._written
            return number, str(number)
        if column.type == "text":
            return text, text
        if column.type == "set<text>":
            return [text], text
        (field,) = self._first_fields(column)
        return {field: text}, text

    def _text(self) -> str:
        self._written += 1
        return f"{self.name}:{self._written}"

    def _first_fields(self, column: Column) -> list[str]:
        schema = self.world.witness.image.schema
        keyspace = self._table.partition(".")[0]
        (name,) = column.parsed.user_types()
        found = schema.type_named(f"{keyspace}.{name}")
        return [] if found is None else [found.fields[0].name]

    def _node(self) -> str:
        return self._node_name or super()._node()

    async def _send(
        self, request: Request, row: Mapping[str, object] | None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Return status, body and headers; -1 for no answer, 0 for a refused connection."""
        headers = dict[str, str]()
        answer = await self.fetch(
            f"http://{request.node}/v1/data/{self._table}/{request.key}",
            ANSWER_S,
            headers={TABLE_VERSION: str(request.least)} if request.least else {},
            body=None if row is None else msgspec.json.encode(row),
            method="GET" if row is None else PUT,
            seen=headers,
        )
        return *answer, headers

    def _begun(self, key: str, value: str | None) -> KvOp:
        return replace(super()._begun(key, value), key=f"{self._table}/{key}")
