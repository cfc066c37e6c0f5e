"""The cache of compiled maps."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

from seedcli.errors import UsageError

_log = logging.getLogger(__name__)

AUTO = "auto"
_MOST_BYTES = 4 * 2**30  # of the user's cache folder
_WRITES = 100  # after which its size is checked again


def open_level_cache(folder: str) -> LevelCache | None:
    """The cache of `environment.level_cache`: a folder, "auto" for one in the user's cache folder, "" for none.

    The user's cache folder holds up to 4 GiB of maps, those used last. Where it cannot be written, there is no cache.

    Raises:
        UsageError: a folder that was named cannot be created or written to.
    """
    if folder != AUTO:
        return LevelCache(folder) if folder else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    own = Path(base if os.path.isabs(base) else "~/.cache") / "seed" / "dmlab"
    try:
        return LevelCache(str(own), most_bytes=_MOST_BYTES)
    except (UsageError, RuntimeError) as error:  # RuntimeError: there is no home folder
        _log.warning("compiled maps are not cached: %s", error)
        return None


class LevelCache:
    """A cache of compiled maps in a folder that any number of actors may share, also on a network file system.

    The interface is Lab's. Files are written atomically; two writers of the same key write the same contents. If the
    folder fails later, maps are recompiled and episodes continue.

    Args:
        folder: created if it does not exist.
        most_bytes: about how much it may hold: the maps that were used last are kept; None: no limit.

    Raises:
        UsageError: the folder cannot be created or written to.
    """

    def __init__(self, folder: str, most_bytes: int | None = None) -> None:
        self._folder = Path(folder).expanduser()
        self._most_bytes = most_bytes
        self._writes = 0
        self._failed = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(self._folder, os.W_OK | os.X_OK)
        except OSError:
            writable = False
        if not writable:
            raise UsageError(f"environment.level_cache {folder!r} cannot be used: name a folder you may write to")
        self._prune()

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map of `key` to `pk3_path`; False if it is not cached."""
        try:
            path = self._path(key)
            shutil.copyfile(path, pk3_path)
            if self._most_bytes is not None:
                os.utime(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._warn("read", error)
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Store the map at `pk3_path` under `key`, if there is none yet."""
        path = self._path(key)
        if path.exists():
            return
        temporary = None
        try:
            path.parent.mkdir(exist_ok=True)
            with open(pk3_path, "rb") as source, tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as target:
                temporary = target.name
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())  # otherwise a crash could leave a truncated map
            os.chmod(temporary, 0o644)  # other users' actors may share the folder
            os.replace(temporary, path)
            self._writes += 1
            if self._writes % _WRITES == 0:
                self._prune()
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            self._warn("written", error)

    def _prune(self) -> None:
        """Remove the maps that have not been used for longest, down to the limit."""
        if self._most_bytes is None:
            return
        found = []
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):  # another process has removed it
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        total = 0
        for _, size, path in sorted(found, reverse=True):
            total += size
            if total > self._most_bytes:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / name[:2] / name[2:]

    def _warn(self, done: str, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            _log.warning(
                "environment.level_cache %s could not be %s (%s): maps are recompiled until it can be",
                self._folder,
                done,
                error.strerror,
            )
