"""The shared token: its sources, its minimum strength and the keys derived from it.

A process that holds the token may join this user's learners as an actor, and serve this user's actors as a learner.
The token is never sent: both sides derive keys from it. It never appears in logs, process lists or run folders.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import secrets
import stat
import string
from pathlib import Path

from seedcli.errors import RefusedError, UsageError

VARIABLE = "SEED_TOKEN"
MIN_BITS = 128
_NEW_BYTES = 32
_MAX_CHARACTERS = 1024
_FEWEST_DIFFERENT = 8  # characters: "aaaa…" is long but not secret
_ALPHABETS = tuple(
    frozenset(letters)
    for letters in (
        string.digits,
        string.hexdigits.lower(),
        string.hexdigits.upper(),
        string.ascii_lowercase,
        string.ascii_uppercase,
        string.ascii_lowercase + string.digits,
        string.ascii_letters,
        string.ascii_letters + string.digits + "-_+/=",
    )
)
_PRINTABLE = 94  # ASCII characters without the space


class Token:
    """A shared secret of sufficient strength; no message contains its text.

    Args:
        text: printable ASCII without spaces, of at least 128 bits: 22 characters of base64, 32 of hexadecimal.
        source: where it was found, for messages.

    Raises:
        RefusedError: the token is too weak or contains other characters.
    """

    __slots__ = ("_key", "source")

    def __init__(self, text: str, source: str) -> None:
        if not text or len(text) > _MAX_CHARACTERS or not all("!" <= c <= "~" for c in text):
            raise RefusedError(
                f"the token from {source} must be 1 to {_MAX_CHARACTERS} printable ASCII characters without spaces: "
                "create one with seed token new"
            )
        bits = _strength(text)
        if bits < MIN_BITS:
            raise RefusedError(
                f"the token from {source} has at most {bits:.0f} bits, fewer than the required {MIN_BITS}: "
                "create one with seed token new"
            )
        self.source = source
        self._key = hashlib.blake2b(text.encode(), digest_size=64, person=b"seed token").digest()

    def derive(self, purpose: str, size: int = 32) -> bytes:
        """Derive a key of `size` bytes (at most 64) for a purpose; the keys of different purposes are independent."""
        return hashlib.blake2b(purpose.encode(), digest_size=size, key=self._key).digest()

    def __repr__(self) -> str:
        return f"Token(from {self.source})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a token cannot be pickled")


def _strength(text: str) -> float:
    """Return the maximum entropy of a text, bits, given the smallest usual alphabet; 0 if it has few characters."""
    used = set(text)
    if len(used) < _FEWEST_DIFFERENT:
        return 0.0
    alphabet = next((len(letters) for letters in _ALPHABETS if used <= letters), _PRINTABLE)
    period = (text + text).find(text, 1)  # the text's length, unless it is a repeated string
    return period * math.log2(alphabet)


def new_token() -> str:
    """Return a new token of 256 bits: 43 characters that need no quoting in a shell."""
    while (text := secrets.token_urlsafe(_NEW_BYTES)).startswith("-"):  # looks like a command-line option
        pass
    return text


def default_path() -> Path:
    """Return the path of this user's token: seed/token in $XDG_CONFIG_HOME, by default ~/.config."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(folder) if os.path.isabs(folder) else _expanded(Path("~/.config"))) / "seed" / "token"


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UsageError(f"{path} cannot be found: no home directory for this user; set HOME or {VARIABLE}") from error


def find_token(token_file: str | Path | None = None, *, create: bool = False) -> Token:
    """Return the token from `token_file`, else from SEED_TOKEN, else from this user's file.

    Args:
        token_file: a file given by the user; None or "": none.
        create: create this user's file if there is none.

    Raises:
        RefusedError: there is no token, it is too weak, or others have access to the file.
    """
    path = default_path()
    if create and not token_file and VARIABLE not in os.environ and not os.path.lexists(path):
        write_token(path)
    if create and token_file and not os.path.lexists(Path(token_file).expanduser()):
        raise RefusedError(f"no token file {token_file}: create it with seed token new --token-file {token_file}")
    return Token(*token_text(token_file))


def token_text(token_file: str | Path | None = None) -> tuple[str, str]:
    """Return the token's text, unchecked, and its source; see `find_token`."""
    if token_file is None or not str(token_file):
        if VARIABLE in os.environ:
            return os.environ[VARIABLE].strip(), VARIABLE
        path, named = default_path(), f"looked in {VARIABLE} (not set), --token-file (not given) and "
    else:
        path, named = _expanded(Path(token_file)), "looked in --token-file "
    try:
        return read_token(path), str(path)
    except FileNotFoundError as error:
        raise RefusedError(
            f"no token: {named}{path} (does not exist); copy the learner's token there (seed token show prints it on "
            "the learner's machine), or start the learner here first, which creates one"
        ) from error


def read_token(path: Path) -> str:
    """Return the text of a token file, to which only this user may have access.

    Raises:
        FileNotFoundError: the file does not exist.
        RefusedError: it cannot be read, is not a regular file, or others have access to it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedError(f"the token file {path} is not a regular file: give another with --token-file")
            if status.st_mode & 0o077:
                raise RefusedError(
                    f"others have access to the token file {path} (mode {stat.S_IMODE(status.st_mode):04o}, not 0600): "
                    f"chmod 600 {path}, and create a new token if others may have read it"
                )
            if status.st_uid not in (os.geteuid(), 0):
                raise RefusedError(f"the token file {path} belongs to another user: give your own with --token-file")
            return os.read(descriptor, _MAX_CHARACTERS + 64).decode("utf-8", "replace").strip()
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RefusedError(
            f"the token file {path} cannot be read ({error.strerror}): fix its permissions, or give --token-file"
        ) from error


def write_token(path: Path, *, replace: bool = False) -> None:
    """Write a new token atomically, readable by this user only.

    Args:
        path: path of the token file; missing folders are created.
        replace: replace an existing token; otherwise an existing token is kept.

    Raises:
        UsageError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _make_folder(path.parent)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, f"{new_token()}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if replace:
            temporary.replace(path)
        else:
            # Two learners of one user may start at the same time on two machines: both must use the first token.
            with contextlib.suppress(FileExistsError):
                try:
                    os.link(temporary, path)
                except OSError as error:
                    if error.errno == errno.EEXIST:
                        raise
                    # A file system without hard links: not atomic, but only one process can create the file.
                    _copy_new(temporary, path)
    except OSError as error:
        raise UsageError(f"the token file {path} cannot be written ({error.strerror}): give --token-file") from error
    finally:
        # If the folder is not writable, there is no temporary file, and unlinking it can fail with various errors.
        with contextlib.suppress(OSError):
            temporary.unlink()


def _copy_new(source: Path, path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, source.read_bytes())
    finally:
        os.close(descriptor)


def _make_folder(path: Path) -> None:
    """Create a folder and its parents, all with mode 0700; `parents=True` would give the parents the umask's mode."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
