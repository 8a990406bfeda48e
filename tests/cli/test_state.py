"""``stele state export|check``: editable files, and reports of invalid edits."""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path

import msgspec
import pytest

from stele.cli import dumps
from stele.cli.errors import UsageError
from stele.domain.snapshot import image_to_facts, state_hash
from stele.log.archive import snapshots
from stele.log.chain import Anchor
from stele.metadata_log.pages import dump_of
from tests.cli.conftest import Server, Stele
from tests.domain.soundness.test_flaws import sound
from tests.domain.test_domains import histories


@pytest.mark.parametrize("format_", ["json", "avro"])
def test_exported_state_round_trips(
    server: Server, stele: Stele, tmp_path: Path, format_: str
) -> None:
    server.answer("GET", "/v1/dump", dump_of(sound()))
    file = tmp_path / "state"
    ran = stele.ok("state", "export", f"--format={format_}", str(file))
    assert f"epoch {sound().epoch} of demo, hash {state_hash(sound())}" in ran.out
    dump = dumps.read(file)
    assert dump.flaws == ()
    assert dump.image is not None
    assert state_hash(dump.image) == state_hash(sound()) == dump.head.hash
    ran = stele("state", "check", str(file))
    assert (ran.exit_code, ran.out.split(":")[0]) == (0, "sound")
    assert stele("state", "export", str(file)).exit_code == 2, "what is there already is kept"


def test_file_name_selects_the_format(server: Server, stele: Stele, tmp_path: Path) -> None:
    server.answer("GET", "/v1/dump", dump_of(sound()))
    for name, is_json in (("a.avro", False), ("a.json", True), ("a", True)):
        assert stele("state", "export", str(tmp_path / name)).exit_code == 0
        assert (tmp_path / name).read_bytes().startswith(b"{") is is_json
    assert stele("state", "export", "--format=json", str(tmp_path / "b.avro")).exit_code == 0
    assert (tmp_path / "b.avro").read_bytes().startswith(b"{")


def test_every_state_of_the_log_round_trips_as_json() -> None:
    for story in histories():
        for image in story.images[1::17]:
            again = dumps.parse(dumps.as_json(image), "it")
            assert again.flaws == ()
            assert again.image is not None
            assert state_hash(again.image) == state_hash(image)
            assert dumps.as_json(again.image) == dumps.as_json(image)


def check(stele: Stele, tmp_path: Path, old: str, new: str) -> list[str]:
    text = dumps.as_json(sound()).decode()
    assert old in text
    file = tmp_path / "edited.json"
    file.write_text(text.replace(old, new, 1))
    ran = stele("state", "check", str(file))
    assert ran.exit_code != 0
    return (ran.out + ran.err).splitlines()


def line_of(part: str) -> int:
    text = dumps.as_json(sound()).decode()
    return text[: text.index(part)].count("\n") + 1


def test_invalid_edits_are_reported_with_their_lines(stele: Stele, tmp_path: Path) -> None:
    at = line_of('"node_id":"n2"')
    said = check(stele, tmp_path, '"node_id":"n2"', '"node_id":2')
    assert said[0].startswith(f"line {at}: Expected `str`, got `int` - at `$.node.node_id`")
    said = check(stele, tmp_path, '"rack":"r2"', '"rak":"r2","rack":"r2"')
    assert said[0] == f"line {at}: there is no field node.rak"
    said = check(stele, tmp_path, '"type":"NodeChanged"', '"type":"NodChanged"')
    assert "NodChanged" in said[0]
    said = check(stele, tmp_path, '"reads":', '"read":')
    at = line_of('"reads":')
    assert said[0].startswith(f"line {at}, placement dc1:3: ")
    said = check(stele, tmp_path, '"numbers":["n1"', '"numbers":["n1","n1"')
    assert said[0] == "numbers: node n1 is there 2 times"
    said = check(stele, tmp_path, ',\n"numbers"', ',,\n"numbers"')
    assert said[0].startswith("stele: ") and "is not a dump: line " in said[0]
    said = check(stele, tmp_path, "stele-state-1", "stele-state-9")
    assert "its format is 'stele-state-9', not stele-state-1" in said[0]


def test_flaws_are_printed_as_json(stele: Stele, tmp_path: Path) -> None:
    file = tmp_path / "edited.json"
    file.write_text(dumps.as_json(sound()).decode().replace('"rack":"r2"', '"rack":"r 2"', 1))
    ran = stele.exits(1, "state", "check", str(file), "--json")
    (flaw,) = msgspec.json.decode(ran.out)["flaws"]
    assert flaw["place"] == "node n2"


def test_invalid_dump_is_refused(stele: Stele, tmp_path: Path) -> None:
    assert "cannot be read" in stele("state", "check", str(tmp_path / "none")).err
    torn = tmp_path / "torn"
    torn.write_bytes(dump_of(sound())[:-40])
    ran = stele("state", "check", str(torn))
    assert (ran.exit_code, "is not a dump" in ran.err) == (2, True)
    deep = tmp_path / "deep"
    for content in (b"[" * 200_000, b'{"facts":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        deep.write_bytes(content)
        ran = stele("state", "check", str(deep))
        assert (ran.exit_code, "nested too deeply" in ran.err) == (2, True)
    whole = dumps.as_json(sound())
    deep.write_bytes(
        whole.replace(b'"facts":[', b'"facts":[' + b'{"x":' * 500 + b"1" + b"}" * 500 + b",", 1)
    )
    assert stele("state", "check", str(deep)).exit_code == 1


def test_dump_with_inconsistent_facts_is_refused() -> None:
    image = sound()
    facts = [fact for fact in image_to_facts(image) if type(fact).__name__ != "KeyspaceChanged"]
    file = io.BytesIO()
    snapshots.write(file, snapshots.head_of(image, 0, Anchor(0, bytes(32)), 0), facts)
    with pytest.raises(UsageError, match="its facts do not make a state"):
        dumps.parse(file.getvalue(), "the file")


def test_corrupted_dump_is_read_or_refused_without_a_crash() -> None:
    chance = random.Random(5)
    for whole in (dump_of(sound()), dumps.as_json(sound())):
        for _ in range(80):
            content = bytearray(whole)
            for _ in range(chance.choice((1, 4))):
                content[chance.randrange(len(content))] = chance.randrange(256)
            with contextlib.suppress(UsageError):
                dumps.parse(bytes(content), "the file")
