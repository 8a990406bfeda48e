"""Addresses: unusable ones are refused, and each has one normal form."""

import pytest
from msgspec.structs import replace

from stele.domain.addresses import is_same_address, normal_address, why_no_address
from stele.domain.base import Rejection
from stele.domain.commands import AnnounceNode, Exclude, ExcludeDead
from stele.domain.soundness import flaws_of
from tests.domain.epochs import code_of
from tests.domain.history import History, join, three_nodes

NONE = (
    "",
    "n1",
    "127.0.0.1:7100",
    "ftp://n1",
    "http:n1",
    "http://",
    "http:///path",
    "http://:80",
    "http://node..local:80",
    "http://.local",
    "http://" + "a" * 64 + ".local",
    "http://" + "a." * 127 + "a",
    "http://n1/" + "a" * 2048,
    "http://\u00fc.local",
    "http://\u00e4_b:7100",
    "http://stra\u00dfe.de",
    "http://\uff41.b",
    "http://n1%2e",
    "http://n1;a",
    "http://.",
    "http://n1:0",
    "http://n1:65536",
    "http://n1:99999999999999999999999",
    "http://n1:-1",
    "http://n1:+80",
    "http://n1:8_0",
    "http://n1:\u0668",
    "http://n1:http",
    "http://n 1",
    "http://n1:80 ",
    "http://n1\n",
    "http://n\u20281",
    "http://n\\1",
    "http://n1?a=b",
    "http://n1/#a",
    "http://300.1.1.1",
    "http://1.2.3",
    "http://::1:80",
    "http://[::1",
    "http://[n1]",
    "http://n[1]",
    "http://[::1]80",
    "http://n\ud8001",
)
SAME = (
    ("http://n7:80", ("http://n7", "http://n7/", "http://N7", "HTTP://n7:80/", "http://n7:", "http://n7:080")),
    ("https://n7:443", ("https://n7", "HTTPS://N7:443/")),
    ("http://n7:7100/store", ("http://n7:7100/store", "http://N7:7100/store/")),
    ("http://[::1]:7100", ("http://[::1]:7100", "http://[0:0:0:0:0:0:0:1]:7100/")),
    ("http://xn--tda.local:80", ("http://xn--tda.local", "http://XN--TDA.local")),
    ("http://127.0.0.1:1", ("http://127.0.0.1:1", "http://me:secret@127.0.0.1:1")),
    ("http://node_1.rack-2.local.:80", ("http://Node_1.rack-2.local.",)),
)  # fmt: skip


@pytest.mark.parametrize("address", NONE)
def test_unusable_address_is_refused(address: str) -> None:
    assert why_no_address(address)
    assert not is_same_address(address, "http://n1")


@pytest.mark.parametrize(("normal", "spelled"), SAME)
def test_spellings_of_an_address_have_one_normal_form(
    normal: str, spelled: tuple[str, ...]
) -> None:
    assert {normal_address(each) for each in spelled} == {normal}
    assert normal_address(normal) == normal
    assert not why_no_address(normal)


def test_join_and_announcement_with_a_bad_address_are_refused() -> None:
    history, _ = three_nodes()
    for address in NONE:
        newcomer = replace(join(4, "r1"), address=address)
        announced = AnnounceNode(node_id="n1", address=address, host_id="host-n1")
        for command in (newcomer, announced):
            refused = history.apply(command)
            assert refused is not None and refused.code == "bad_address"
            assert refused.message.endswith(
                f" is not an address of a node: {why_no_address(address)}."
            )
            assert "STELE_ADDRESS=http://host:port" in refused.hint


def test_address_in_another_spelling_is_in_use() -> None:
    history, _ = three_nodes()
    for address in ("http://n1", "http://n1/", "http://N1", "http://n1:80"):
        refused = history.apply(replace(join(4, "r1"), address=address))
        assert refused is not None and refused.code == "address_in_use"
        spelled = "" if address == "http://n1" else ", as http://n1"
        assert refused.message == f"Address {address} belongs to node 'n1'{spelled}."
    assert history.apply(AnnounceNode(node_id="n1", address="http://N1", host_id="host-n1")) is None


def announce(history: History, node_id: str, address: str) -> Rejection | None:
    return history.apply(AnnounceNode(node_id=node_id, address=address, host_id=f"host-{node_id}"))


def addresses(history: History) -> list[str]:
    return [row.address for _, row in sorted(history.image.membership.nodes.items())]


def test_members_can_swap_addresses() -> None:
    history, _ = three_nodes()
    assert announce(history, "n1", "http://N2/") is None
    assert addresses(history) == ["http://N2/", "", "http://n3"]
    assert announce(history, "n2", "http://n1") is None
    assert addresses(history) == ["http://N2/", "http://n1", "http://n3"]
    assert list(flaws_of(history.image)) == []


def test_excluded_node_cannot_take_an_address() -> None:
    history, _ = three_nodes()
    assert history.apply(Exclude(("n3",)), "exclude") is None
    assert history.apply(ExcludeDead(1, "exclude")) is None
    assert code_of(announce(history, "n3", "http://n1")) == "address_in_use"
    assert addresses(history) == ["http://n1", "http://n2", "http://n3"]


def test_other_schemes_ports_hosts_and_paths_are_different_addresses() -> None:
    others = ("http://n1", "https://n1", "http://n1:81", "http://n2", "http://n1/a", "http://n1/A")
    assert len({normal_address(each) for each in others}) == len(others)
    assert not is_same_address("10.0.0.1", "http://10.0.0.1")
    assert is_same_address("10.0.0.1", "10.0.0.1")


def test_member_keeps_a_bad_address_from_an_older_build() -> None:
    """Otherwise it would not start again with a newer release."""
    history, _ = three_nodes()
    image = history.images[-1]
    node = image.membership.nodes["n1"]
    nodes = image.membership.nodes.set("n1", replace(node, address="http://node..local"))
    history.images[-1] = replace(image, membership=replace(image.membership, nodes=nodes))
    told = AnnounceNode(
        node_id="n1", address="http://node..local", release_version="2", host_id="host-n1"
    )
    assert history.apply(told) is None
    assert code_of(history.apply(replace(told, address="http://node...local"))) == "bad_address"
