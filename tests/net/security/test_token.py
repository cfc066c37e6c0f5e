"""The token: its sources, strength and file permissions, and that it is shown only on request."""

from __future__ import annotations

import copy
import os
import pickle
import re
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedcli.cli.main import main
from seedcli.errors import RefusedError, SeedError, UsageError
from seedcli.net.security.keys import Security, curve_keys, tls_identity
from seedcli.net.security.token import Token, default_path, find_token, new_token, token_text, write_token
from tests.net.harness import LIMIT, TOKEN

OTHER = "another-token-of-these-tests-0123456789"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory; no variable names a token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("SEED_TOKEN", raising=False)
    return tmp_path


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def token_file(path: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    path.chmod(mode)
    return path


def same(token: Token, text: str) -> bool:
    return token.derive("x") == Token(text, "x").derive("x")


# -- strength


STRONG = {
    "32 hexadecimal digits": "0123456789abcdeffedcba9876543210",
    "in capitals": "0123456789ABCDEFFEDCBA9876543210",
    "22 of base64": "Zm9vYmFyYmF6cXV4MTIzNA",
    "39 decimal digits": "314159265358979323846264338327950288419",
    "28 small letters": "qwzjxkvbpygfdmcuotnshraeilqz",
    "any printable": "!~#$%&'()*{}|<>?@[]^`",
    "what seed makes": new_token(),
    "the longest": (new_token() * 24)[:1023] + "!",
}


@pytest.mark.parametrize("text", STRONG.values(), ids=STRONG)
def test_a_strong_token_is_accepted(text: str) -> None:
    assert len(Token(text, "here").derive("x")) == 32


WEAK = {
    "31 hexadecimal digits": ("0123456789abcdeffedcba987654321", "at most 124 bits"),
    "21 of base64": ("Zm9vYmFyYmF6cXV4MTIzN", "at most 12"),
    "38 decimal digits": ("31415926535897932384626433832795028841", "at most 126 bits"),
    "a password": ("tr0ub4dor&3", "at most 72 bits"),
    "one character": ("a" * 64, "at most 0 bits"),
    "seven": ("abcdefg" * 9, "at most 0 bits"),
    "repeated": ("password1" * 8, "at most 47 bits"),
    "empty": ("", "1 to 1024 printable"),
    "too long": ("aB3-" + new_token() * 24, "1 to 1024 printable"),
    "a space": ("0123456789abcdef fedcba9876543210", "without spaces"),
    "two lines": (f"{new_token()}\n{new_token()}", "without spaces"),
    "a control character": (f"{new_token()}\x1b[2J", "without spaces"),
    "not ASCII": ("päßwörter" * 9, "without spaces"),
    "no UTF-8": ("\ufffd" * 50, "without spaces"),
}


@pytest.mark.parametrize(("text", "words"), WEAK.values(), ids=WEAK)
def test_a_weak_token_is_refused_and_not_shown(text: str, words: str) -> None:
    with pytest.raises(RefusedError) as caught:
        Token(text, "SEED_TOKEN")
    message = str(caught.value)
    assert words in message and "the token from SEED_TOKEN" in message and "seed token new" in message
    assert not text or text not in message


def test_new_tokens_are_unique_strong_and_plain_text() -> None:
    made = {new_token() for _ in range(500)}
    assert len(made) == 500
    for text in made:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{42}", text)
        Token(text, "new")


# -- secrecy and keys


def test_no_representation_contains_the_token() -> None:
    token = Token(TOKEN, "here")
    secrets = (TOKEN, token.derive("x").hex(), repr(token.derive("x")))
    security = Security(token)
    identity = tls_identity(security, "actor")
    shown = [f"{token!r}", f"{token!s}", f"{token}", repr(security), repr([token])]
    shown += [repr(identity), str(identity)]
    try:
        raise ValueError(token)
    except ValueError:
        shown.append(traceback.format_exc())
    for text in shown:
        assert not any(secret in text for secret in secrets)
        assert "PRIVATE KEY" not in text
    assert repr(token) == "Token(from here)"
    assert not hasattr(token, "__dict__") and TOKEN not in str([getattr(token, name) for name in token.__slots__])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_token_cannot_be_pickled(protocol: int) -> None:
    token = Token(TOKEN, "here")
    for secret in (token, Security(token), [token]):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(secret, protocol)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.deepcopy(token)


def test_keys_differ_by_purpose_and_token() -> None:
    token, other = Token(TOKEN, "a"), Token(OTHER, "a")
    purposes = ["zeromq curve learner", "zeromq curve actor", "grpc tls learner", "proof actor", "proof learner", ""]
    keys = {t.derive(purpose, size) for t in (token, other) for purpose in purposes for size in (32, 64)}
    assert len(keys) == 2 * len(purposes) * 2
    assert not any(long.startswith(short) for long in keys for short in keys if len(short) < len(long))
    assert token.derive("x") == Token(TOKEN, "elsewhere").derive("x")
    assert curve_keys(token, "learner") != curve_keys(token, "actor")
    assert {len(key) for side in ("learner", "actor") for key in curve_keys(token, side)} == {40}  # type: ignore[arg-type]


# -- its sources


def test_the_order_of_token_sources(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = token_file(home / ".config" / "seed" / "token", "of-the-home-folder-0123456789abcdef")
    assert same(find_token(), "of-the-home-folder-0123456789abcdef") and find_token().source == str(mine)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    token_file(home / "xdg" / "seed" / "token", "of-the-xdg-folder-0123456789abcdef")
    assert same(find_token(), "of-the-xdg-folder-0123456789abcdef")
    monkeypatch.setenv("SEED_TOKEN", f" {OTHER}\n")
    assert same(find_token(), OTHER) and find_token().source == "SEED_TOKEN"
    named = token_file(home / "named", TOKEN)
    assert same(find_token(named), TOKEN) and same(find_token("~/named"), TOKEN)
    assert same(find_token(""), OTHER), "an empty setting names no file"


def test_a_relative_xdg_folder_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    assert default_path() == home / ".config" / "seed" / "token"


def test_a_named_source_has_no_fallback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token_file(home / ".config" / "seed" / "token")
    for text in ("", "  ", "weak"):
        monkeypatch.setenv("SEED_TOKEN", text)
        with pytest.raises(RefusedError, match="the token from SEED_TOKEN"):
            find_token(create=True)
    monkeypatch.setenv("SEED_TOKEN", OTHER)
    with pytest.raises(RefusedError, match=r"no token file .*/absent: create it with seed token new"):
        find_token(home / "absent", create=True)
    assert not (home / "absent").exists(), "only the user's default file is created"


def test_the_error_for_a_missing_token_lists_the_sources(home: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        find_token()
    for part in ("SEED_TOKEN (not set)", "--token-file (not given)", f"{home}/.config/seed/token (does not exist)"):
        assert part in str(caught.value)
    assert list(home.iterdir()) == [], "an actor creates none"


def test_a_missing_home_directory_is_a_usage_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="~no-such-user/token cannot be found"):
        find_token("~no-such-user/token")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(
        "os.path.expanduser", lambda path: path
    )  # as for a user without an entry in the password database
    with pytest.raises(UsageError, match="set HOME or SEED_TOKEN"):
        find_token(create=True)


# -- its file


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_new_token_file_is_readable_by_this_user_only(home: Path, umask: None, mask: int) -> None:
    os.umask(mask)
    token = find_token(create=True)
    path = home / ".config" / "seed" / "token"
    assert token.source == str(path) and same(token, path.read_text().strip())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]
    assert find_token(create=True).derive("x") == token.derive("x"), "the file is reused"


def test_learners_that_start_at_once_agree_on_one_token(home: Path) -> None:
    program = (
        "import sys; from seedcli.net.security.token import find_token\n"
        "print('ready', flush=True); sys.stdin.readline(); print(find_token(create=True).derive('x').hex())"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        keys = {process.communicate(timeout=LIMIT)[0] for process in processes}
    finally:
        for process in processes:
            process.kill()
            process.wait(LIMIT)
    assert keys == {find_token().derive("x").hex() + "\n"}
    assert [entry.name for entry in (home / ".config" / "seed").iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_token_file_accessible_to_others_is_refused(home: Path, mode: int) -> None:
    path = token_file(home / "token", mode=mode)
    with pytest.raises(RefusedError) as caught:
        find_token(path)
    assert f"(mode {mode:04o}, not 0600)" in str(caught.value) and f"chmod 600 {path}" in str(caught.value)
    path.chmod(0o400)
    assert same(find_token(path), TOKEN)


def test_a_symbolic_link_is_checked_by_its_target(home: Path) -> None:
    link = home / "link"
    link.symlink_to(token_file(home / "open", mode=0o644))
    with pytest.raises(RefusedError, match="mode 0644"):
        find_token(link)
    (home / "open").chmod(0o600)
    assert same(find_token(link), TOKEN)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_token_file_of_another_user_is_refused(home: Path) -> None:
    path = token_file(home / "token")
    os.chown(path, 12345, 12345)
    with pytest.raises(RefusedError, match="belongs to another user"):
        find_token(path)


def test_a_path_that_is_not_a_regular_file_is_refused(home: Path) -> None:
    os.mkfifo(home / "pipe", 0o600)
    (home / "folder").mkdir(mode=0o700)
    for path in (home / "pipe", home / "folder", Path("/dev/zero")):
        with pytest.raises(RefusedError, match=f"{path} is not a regular file"):
            find_token(path)
    (home / "loop").symlink_to(home / "loop")
    with pytest.raises(RefusedError, match="cannot be read .Too many levels of symbolic links"):
        find_token(home / "loop")
    with pytest.raises(RefusedError, match="cannot be read .Not a directory"):
        find_token(token_file(home / "token") / "below")


def test_a_huge_file_is_not_read(home: Path) -> None:
    path = token_file(home / "huge")
    os.truncate(path, 2**40)  # a sparse file
    with pytest.raises(RefusedError, match="1 to 1024 printable"):
        find_token(path)
    path.write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(RefusedError, match="1 to 1024 printable"):
        find_token(path)
    path.write_text("")
    with pytest.raises(RefusedError, match="1 to 1024 printable"):
        find_token(path)


def test_an_unwritable_token_path_is_a_usage_error(home: Path) -> None:
    token_file(home / "file")
    for path in (home / "file" / "token", home / "file" / "below" / "token", home / ("x" * 300)):
        with pytest.raises(UsageError, match="cannot be written"):
            write_token(path)
    assert same(find_token(home / "file"), TOKEN)


def test_an_existing_token_is_kept_without_replace(home: Path) -> None:
    path = token_file(home / "token")
    write_token(path)
    assert same(find_token(path), TOKEN)
    write_token(path, replace=True)
    assert not same(find_token(path), TOKEN) and stat.S_IMODE(path.stat().st_mode) == 0o600
    # A link is replaced by a token file; the file that it pointed to is unchanged.
    precious, link = token_file(home / "precious"), home / "link"
    link.symlink_to(precious)
    write_token(link, replace=True)
    assert not link.is_symlink() and same(find_token(precious), TOKEN)


# -- seed token


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["token", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_show_prints_only_the_token(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "show")
    assert (status, out) == (4, "") and "does not exist" in err and err.count("\n") == 1
    path = token_file(home / ".config" / "seed" / "token")
    status, out, err = run(capsys, "show")
    assert (status, out) == (0, f"{TOKEN}\n") and str(path) in err and TOKEN not in err
    monkeypatch.setenv("SEED_TOKEN", OTHER)
    assert run(capsys, "show")[1] == f"{OTHER}\n"
    assert run(capsys, "show", "--token-file", str(path))[1] == f"{TOKEN}\n"
    path.chmod(0o644)
    status, out, err = run(capsys, "show", "--token-file", str(path))
    assert (status, out) == (4, "") and TOKEN not in err


def test_new_creates_a_file_and_prints_no_token(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / ".config" / "seed" / "token"
    status, out, err = run(capsys, "new")
    text = path.read_text().strip()
    assert (status, out) == (0, "") and str(path) in err and text not in err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and Token(text, "x")
    status, out, err = run(capsys, "new")
    assert (status, out) == (2, "") and "--replace" in err and path.read_text().strip() == text
    assert run(capsys, "new", "--replace")[0] == 0
    assert path.read_text().strip() not in ("", text)
    assert run(capsys, "new", "--token-file", str(home / "a" / "b"))[0] == 0
    assert stat.S_IMODE((home / "a" / "b").stat().st_mode) == 0o600


def test_new_with_print_writes_no_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "new", "--print")
    assert (status, err) == (0, "") and Token(out.strip(), "x")
    assert run(capsys, "new", "--print")[1] != out
    assert list(home.iterdir()) == []


def test_token_text_returns_text_and_source(home: Path) -> None:
    path = token_file(home / "token")
    assert token_text(path) == (TOKEN, str(path))
    with pytest.raises(SeedError):
        token_text()
