"""Texts of nodetool and cqlsh, as clusters printed them, and with what no cluster prints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stele.domain.legacy.description import LegacyKeyspace
from stele.domain.legacy.texts.describecluster import parse_describecluster
from stele.domain.legacy.texts.describering import parse_describering
from stele.domain.legacy.texts.lines import TextError
from stele.domain.legacy.texts.ring import parse_ring
from stele.domain.legacy.texts.rows import parse_keyspaces, parse_peers
from stele.domain.legacy.texts.status import parse_status
from tests.domain.legacy.samples import sample

PARSERS: dict[str, Callable[[str], object]] = {
    "ring.txt": parse_ring,
    "status.txt": parse_status,
    "describecluster.txt": parse_describecluster,
    "describering/orders.txt": parse_describering,
    "keyspaces.json": parse_keyspaces,
    "peers_v2.json": parse_peers,
}

# The forms are those of Scylla's own nodetool; the figures are made up.
SCYLLA_STATUS = """\
Datacenter: datacenter1
=======================
Status=Up/Down
|/ State=Normal/Leaving/Joining/Moving
-- Address   Load      Tokens Owns Host ID                              Rack
UN 127.0.0.1 201.19 KB 2      ?    78a9c1d0-b341-467e-a076-9eff4cf7ffc6 rack1
?N 127.0.0.2 ?         2      ?    ed341f60-b12a-4fd4-9917-e80977ded0f9 rack2

Note: Non-system keyspaces don't have the same replication settings
"""
SCYLLA_DESCRIBERING = """\
Schema Version:83541f18-c1bc-11ee-b55e-4d563ca8da4b
TokenRange:
\tTokenRange(start_token:7, end_token:-5, endpoints:[fe80:0:0:0:0:0:0:1], rpc_endpoints:[fe80::1],\
 endpoint_details:[EndpointDetails(host:fe80::1, datacenter:dc1, rack:r1)])
"""
IPV6_RING = """\

Datacenter: dc1
==========
Address                Rack        Status State   Load            Owns                Token
                                                                                      9
2001:db8:0:0:0:0:0:1   r1          Up     Normal  ?               ?                   -5
2001:DB8::2            r1          Down   Leaving 1.2 GiB         50.00%              9

"""
ONE_TOKEN_STATUS = """\
Datacenter: dc1
===============
Status=Up/Down
|/ State=Normal/Leaving/Joining/Moving
--  Address      Load       Owns (effective)  Host ID                               Token                Rack
UN  2001:db8::1  70.5 KiB   100.0%            a5475e99-1ad1-46fe-b75e-0b3f68e40ac2  3074457345618258602  r1
"""


def test_a_ring_of_three_dcs_is_read_with_every_token() -> None:
    rows = parse_ring(sample("ring.txt"))
    assert len(rows) == 24
    assert {(row.address, row.dc, row.rack) for row in rows} == {
        ("127.0.7.1", "east", "r1"),
        ("127.0.7.2", "east", "r1"),
        ("127.0.7.3", "east", "r2"),
        ("127.0.7.4", "west", "a"),
        ("127.0.7.5", "west", "b"),
        ("127.0.7.6", "south", "z1"),
    }
    own = [row.token for row in rows if row.address == "127.0.7.6"]
    assert own == [
        -4600000000000000051,
        400000000000000052,
        5100000000000000053,
        9200000000000000054,
    ]


def test_how_a_node_stands_is_read() -> None:
    down = {row.address: row.status for row in parse_status(sample("status-down.txt"))}
    assert down.pop("127.0.7.5") == "DN"
    assert {*down.values()} == {"UN"}
    joining = {row.address: row.status for row in parse_ring(sample("ring-joining.txt"))}
    assert joining["127.0.7.7"] == "UJ"


def test_addresses_have_one_form_whoever_prints_them() -> None:
    first, second = parse_ring(IPV6_RING)
    assert (first.address, first.status) == ("2001:db8::1", "UN")
    assert (second.address, second.status) == ("2001:db8::2", "DL")
    (answer,) = parse_describering(SCYLLA_DESCRIBERING).answers
    assert (answer.start, answer.end, answer.replicas) == (7, -5, ("fe80::1",))


def test_the_tables_of_scylla_and_of_nodes_with_one_token_are_read() -> None:
    _, unknown = parse_status(SCYLLA_STATUS)
    assert (unknown.status, unknown.tokens, unknown.rack) == ("?N", 2, "rack2")
    (only,) = parse_status(ONE_TOKEN_STATUS)
    assert (only.address, only.tokens, only.rack) == ("2001:db8::1", 1, "r1")


def test_describecluster_tells_of_versions_releases_and_keyspaces() -> None:
    found = parse_describecluster(sample("describecluster-down.txt"))
    assert (found.cluster, found.partitioner) == ("Shop Prod", "Murmur3Partitioner")
    assert found.unreachable == ("127.0.7.5",)
    (hosts,) = found.schema_versions.values()
    assert len(hosts) == 5
    assert found.releases == {f"127.0.7.{n}": "5.0.2" for n in range(1, 7)}
    assert found.keyspaces is not None
    options = {keyspace.name: keyspace.options for keyspace in found.keyspaces}
    assert options["audit"] == {"east": "3", "south": "1"}
    assert options["system"] == {}


def test_rows_are_read_as_cqlsh_prints_and_as_it_copies_them() -> None:
    lines = sample("keyspaces.json").splitlines()
    whole = parse_keyspaces(sample("keyspaces.json"))
    drawn = "\n".join(["", " [json]", "---------", *(f" {each}" for each in lines), "", "(7 rows)"])
    assert parse_keyspaces(drawn) == whole
    assert parse_keyspaces("[\n" + ",\n".join(lines) + "\n]\n") == whole
    copied = (
        "keyspace_name,durable_writes,replication\n"
        "\"audit\",True,\"{'class': 'org.apache.cassandra.locator.SimpleStrategy',"
        " 'replication_factor': '3'}\"\n"
    )
    (simple,) = parse_keyspaces(copied)
    assert simple == LegacyKeyspace(
        name="audit", strategy="SimpleStrategy", options={"replication_factor": "3"}
    )


@pytest.mark.parametrize("name", PARSERS)
def test_a_line_that_is_not_understood_is_named(name: str) -> None:
    lines = sample(name).split("\n")
    for number in range(len(lines)):
        with pytest.raises(TextError) as raised:
            PARSERS[name]("\n".join([*lines[:number], "~ what is this ~", *lines[number:]]))
        assert raised.value.line in (number + 1, number + 2), "the line, or the first one after it"


@pytest.mark.parametrize("name", PARSERS)
def test_no_text_at_all_is_an_error(name: str) -> None:
    with pytest.raises(TextError):
        PARSERS[name]("\n \n")


def test_a_ring_that_was_cut_off_is_noticed() -> None:
    lines = sample("ring.txt").split("\n")
    last = max(number for number, line in enumerate(lines) if "Normal" in line)
    with pytest.raises(TextError, match="cut off"):
        parse_ring("\n".join(lines[:last]))


@pytest.mark.parametrize(
    ("name", "right", "wrong", "why"),
    [
        ("ring.txt", "127.0.7.4 ", "node4.west ", "no IP address"),
        ("ring.txt", "-6100000000000000031", "-61000000000000000310", "no token"),
        ("status.txt", "a5475e99-1ad1", "a5475e99_1ad1", "no UUID"),
        ("describering/orders.txt", "endpoints:[127.0.7.2", "endpoints:[127.0.7.2:7000", "no IP"),
        ("keyspaces.json", '"replication"', '"durable"', "no map `replication`"),
        ("peers_v2.json", '"rack"', '"shelf"', "lacks rack"),
    ],
)
def test_a_value_that_cannot_be_is_named(name: str, right: str, wrong: str, why: str) -> None:
    text = sample(name)
    assert right in text
    with pytest.raises(TextError, match=why) as raised:
        PARSERS[name](text.replace(right, wrong, 1))
    assert raised.value.line == text[: text.index(right)].count("\n") + 1
