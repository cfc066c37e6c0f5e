"""Videos of episodes, written with imageio and its bundled ffmpeg."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from seedcli.config.sections import EnvironmentConfig
from seedcli.envs.registry import family_of

_MIN_HEIGHT = 240  # pixels; smaller pictures are enlarged by an integer factor


class VideoWriter:
    """Writes RGB pictures to an MP4 file at the environment's frame rate; a context manager.

    Args:
        path: the file; an existing one is replaced.
        config: the environment, which sets the frame rate.
    """

    def __init__(self, path: Path, config: EnvironmentConfig) -> None:
        self._path = path
        self._rate = family_of(config).frames_per_second(config)
        self._writer: Any = None

    def __enter__(self) -> Self:
        # Rendering is off-screen: without this, SDL looks for a display and warns on a machine without one.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        return self

    def add(self, picture: npt.NDArray[np.uint8]) -> None:
        """Append a picture [height, width, 3]."""
        import imageio

        factor = max(1, -(-_MIN_HEIGHT // picture.shape[0]))
        picture = picture.repeat(factor, axis=0).repeat(factor, axis=1)
        # H.264 requires even sides.
        picture = picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2]
        if self._writer is None:
            self._writer = imageio.get_writer(
                self._path, fps=self._rate, codec="libx264", quality=8, macro_block_size=2
            )
        self._writer.append_data(picture)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
