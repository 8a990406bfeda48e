"""Access by tokens, and their permissions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from stele.runtime.answers.common import LASTING
from stele.runtime.callers import (
    LOOK_S,
    MAX_BYTES,
    RECOVER,
    Caller,
    Callers,
    callers_of,
    line_of,
    read_callers,
    require_actor,
)
from stele.runtime.http import (
    Health,
    HttpAnswer,
    HttpError,
    PlainHandler,
    bind,
    build_app,
    json_answer,
    serving,
)
from stele.runtime.settings import ConfigurationError, ServiceSettings
from stele.runtime.tokens import TOKEN_FORM, digest_of, new_token

ADA, CI = "adas-token", "the-token-of-ci"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def look(self) -> None:
        """Advance the clock past the interval of checks of the file."""
        self.now_s += LOOK_S


def file_of(folder: Path, *lines: str) -> Path:
    file = folder / "callers"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def refused(callers: Callers, authorization: str) -> HttpError:
    with pytest.raises(HttpError) as found:
        callers.who(authorization)
    return found.value


def test_written_line_is_parsed_again() -> None:
    found = read_callers(f"# those of us\n\n{line_of('ada', ADA)}  # on call\n")
    assert found[digest_of(ADA)].name == "ada"
    assert TOKEN_FORM.fullmatch(new_token())


def test_caller_without_a_list_may_send_all_but_internal_commands() -> None:
    ada = read_callers(line_of("ada", ADA) + "\n")[digest_of(ADA)]
    for what in ("create_keyspace", "remove", "restrict_commits", RECOVER):
        ada.check(what)
    with pytest.raises(HttpError) as found:
        ada.check("claim_coordinator")
    assert (found.value.status, found.value.body.code) == (403, "not_allowed")


def test_caller_with_a_list_may_send_only_those_commands() -> None:
    ci = read_callers(line_of("ci", CI, ("create_table", "claim_coordinator")) + "\n")[
        digest_of(CI)
    ]
    ci.check("create_table")
    ci.check("claim_coordinator")
    for what in ("drop_table", RECOVER):
        with capture_logs() as lines, pytest.raises(HttpError, match=f"may not ask for {what}"):
            ci.check(what)
        assert [(line["caller"], line["command"]) for line in lines] == [("ci", what)]


def test_one_name_may_have_two_tokens() -> None:
    found = read_callers(f"{line_of('ada', ADA)}\n{line_of('ada', CI, (RECOVER,))}\n")
    assert [caller.name for caller in found.values()] == ["ada", "ada"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no callers"),
        ("# nobody", "it has no callers"),
        ("ada", "line 1: write a name"),
        (f"ada {ADA}", "line 1: .* is no SHA-256"),
        (f"\nada {'A' * 64}", "line 2: .* is no SHA-256"),
        (f"ada {hashlib.sha256(b'').hexdigest()}", "line 1: this is the SHA-256 of nothing"),
        (f"ada {'a' * 64} drop_everything", "line 1: there is no command .* at place 1"),
        (f"ada {'a' * 64} remove,", "line 1: there is no command .* at place 2"),
        (f"ada {'a' * 64} remove, leave", "line 1: write a name"),
        (f"ada {'a' * 64}\nbob {'a' * 64}", "line 2: an earlier line has the same token"),
        (f"coordinator {'a' * 64}", "line 1: .* of Stele's own"),
        (f"tablet-balancer {'a' * 64} leave", "line 1: .* of Stele's own"),
        (f"{'a' * 257} {'a' * 64}", "line 1: .* is no name"),
        (f"a\x1b[2J {'a' * 64}", "line 1: .* is no name"),
    ],
)
def test_invalid_line_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_callers(f"{text}\n")


@pytest.mark.parametrize(
    "line",
    [
        "ada SECRET",
        "SECRET",
        f"ada {'a' * 64} SECRET",
        "a\0SECRET x",
        "SECRET ada x y",
        "x SECRET y",
    ],
)
def test_token_in_an_invalid_line_is_not_disclosed(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, token = Clock(), "a_token_that_somebody_took_for_its_hash"
    callers = Callers(file_of(tmp_path, line_of("ada", ADA)), clock)
    file_of(tmp_path, line.replace("SECRET", token))
    clock.look()
    error = refused(callers, f"Bearer {ADA}")
    assert "line 1" in error.body.message
    logged = capsys.readouterr().out
    assert "line 1" in logged
    assert token[:12] not in error.body.message + logged


def test_partly_written_file_grants_nothing_more() -> None:
    whole = f"{line_of('ada', ADA)}\n{line_of('ci', CI, ('create_table', RECOVER))}\n"
    before = read_callers(whole)
    for length in range(len(whole)):
        try:
            found = read_callers(whole[:length])
        except ValueError:
            continue
        assert found.items() <= before.items(), whole[:length]


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028"])
def test_comment_extends_to_the_newline_only(end: str, tmp_path: Path) -> None:
    """Other line separators of editors do not end the comment."""
    file = file_of(tmp_path, line_of("ada", ADA), f"# withdrawn:{end}{line_of('ci', CI)}")
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    callers = Callers(file)
    assert callers.who(f"Bearer {ADA}").name == "ada"
    assert refused(callers, f"Bearer {CI}").status == 401


@pytest.mark.parametrize("name", ["", "two words", "a#b", "a\nb"])
def test_invalid_caller_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name"):
        line_of(name, ADA)


def test_token_identifies_its_caller(tmp_path: Path) -> None:
    callers = Callers(file_of(tmp_path, line_of("ada", ADA), line_of("ci", CI)))
    assert callers.who(f"Bearer {ADA}").name == "ada"
    assert callers.who(f"bearer  {CI} ").name == "ci"
    for authorization in (
        "",
        "Bearer",
        "Bearer ",
        f"Basic {ADA}",
        ADA,
        f"Bearer {ADA}x",
        f"Bearer {digest_of(ADA).hex()}",
        "Bearer \udcff",
    ):
        error = refused(callers, authorization)
        assert (error.status, error.body.code) == (401, "token_needed")
        assert dict(error.headers)["www-authenticate"].startswith("Bearer")
        assert ADA not in error.body.message + error.body.hint


def test_actor_must_be_the_caller_of_the_token() -> None:
    ada = Caller("ada", frozenset())
    assert ada.actor("") == ada.actor("ada") == "ada"
    with pytest.raises(HttpError, match="given as 'bob'") as found:
        ada.actor("bob")
    assert (found.value.status, found.value.body.code) == (403, "other_actor")


def test_token_that_nobody_checks_must_not_be_the_only_name() -> None:
    require_actor("ada", "Bearer token")
    require_actor("", "")
    with pytest.raises(HttpError) as found:
        require_actor("", "Bearer token")
    assert (found.value.status, found.value.body.code) == (400, "token_not_checked")


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    clock = Clock()
    callers = Callers(file_of(tmp_path, line_of("ada", ADA)), clock)
    file_of(tmp_path, line_of("ci", CI))
    assert callers.who(f"Bearer {ADA}").name == "ada", "it is not looked at for each request"
    clock.look()
    assert callers.who(f"Bearer {CI}").name == "ci"
    assert refused(callers, f"Bearer {ADA}").status == 401


def test_replaced_file_of_the_same_size_is_read_again(tmp_path: Path) -> None:
    clock = Clock()
    callers = Callers(file_of(tmp_path, line_of("ada", ADA)), clock)
    other = tmp_path / "other"
    other.write_text(f"{line_of('eve', CI)}\n")
    other.replace(tmp_path / "callers")
    clock.look()
    assert callers.who(f"Bearer {CI}").name == "eve"


def test_rewritten_file_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    clock = Clock()
    file = file_of(tmp_path, line_of("ada", ADA))
    os.utime(file, (1, 1))
    callers = Callers(file, clock)
    file.write_text(f"{line_of('eve', CI)}\n")
    os.utime(file, (1, 1))
    clock.look()
    assert callers.who(f"Bearer {CI}").name == "eve"


def test_too_large_or_special_file_is_not_read(tmp_path: Path) -> None:
    clock = Clock()
    file = file_of(tmp_path, line_of("ada", ADA))
    callers = Callers(file, clock)
    file_of(tmp_path, line_of("ada", ADA), "#" * MAX_BYTES)
    clock.look()
    assert "bytes" in refused(callers, f"Bearer {ADA}").body.message
    file.unlink()
    os.mkfifo(file)
    clock.look()
    assert "no regular file" in refused(callers, f"Bearer {ADA}").body.message


@pytest.mark.parametrize("content", [b"ada nothing", b"", b"\xff\xfe", None])
def test_unreadable_file_refuses_all_callers(tmp_path: Path, content: bytes | None) -> None:
    clock = Clock()
    file = file_of(tmp_path, line_of("ada", ADA))
    callers = Callers(file, clock)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    clock.look()
    for _ in range(2):
        error = refused(callers, f"Bearer {ADA}")
        assert (error.status, error.body.code) == (503, "unavailable")
        assert str(file) in error.body.message
        assert error.body.details == {LASTING: True}, "waiting does not mend it"
        assert str(file) in callers.trouble()
        clock.look()
    file_of(tmp_path, line_of("ada", ADA))
    clock.look()
    assert callers.trouble() == ""
    assert callers.who(f"Bearer {ADA}").name == "ada"


def test_start_fails_on_an_unreadable_file(tmp_path: Path) -> None:
    for file in (tmp_path / "none", file_of(tmp_path, "ada")):
        with pytest.raises(ConfigurationError, match="STELE_HTTP_CALLERS_FILE"):
            callers_of(ServiceSettings(http_callers_file=str(file)))
    assert callers_of(ServiceSettings()) is None


def guarded(callers: Callers) -> PlainHandler:
    async def who(_: bytes, authorization: str) -> HttpAnswer:
        return json_answer(callers.who(authorization).name)

    return who


async def in_pieces() -> AsyncIterator[bytes]:
    yield b"x"


@asynccontextmanager
async def whoami_client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a service that returns the caller of the token."""
    callers = Callers(file_of(folder, line_of("ada", ADA), line_of("ci", CI)))
    app = build_app("trial", [], lambda: Health(ok=True), plain={"/who": guarded(callers)})
    async with (
        serving(app, bind("127.0.0.1", 0)) as url,
        httpx.AsyncClient(base_url=url, timeout=240) as http,
    ):
        yield http


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("first", [f"Bearer {ADA}", "Bearer another", ""])
@pytest.mark.parametrize("second", [f"Bearer {CI}", "Bearer another", ""])
async def test_two_authorization_headers_are_refused(
    tmp_path: Path, first: str, second: str, *, chunked: bool
) -> None:
    """A proxy that reads the other header would see another caller."""

    async with whoami_client(tmp_path) as http:
        headers = [("authorization", first), ("authorization", second)]
        content = in_pieces() if chunked else b"x"
        answer = await http.post("/who", content=content, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "token_needed")


@pytest.mark.parametrize("chunked", [False, True])
async def test_authorization_reaches_the_handler_for_any_body(
    tmp_path: Path, chunked: bool
) -> None:
    async with whoami_client(tmp_path) as http:
        for token, name in ((ADA, "ada"), (CI, "ci"), ("", "")):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            content = in_pieces() if chunked else b"x"
            answer = await http.post("/who", content=content, headers=headers)
            if name:
                assert answer.json() == name
            else:
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Bearer")
