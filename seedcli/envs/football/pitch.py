"""A football pitch drawn from above, from the planes an agent observes; the engine's own renderer needs a screen."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from seedcli.envs.football.rewards import ACTIVE, BALL, LEFT_TEAM, PLANES, RIGHT_TEAM, cell_centres

HEIGHT, WIDTH = 464, 640  # pixels, multiples of 16 for video encoders

_SCALE = 3  # drawn larger by this factor and scaled down, which smooths edges
_TOP = 46  # pixels of the score line
_HALF_LENGTH, _HALF_WIDTH = 54.4, 35.1  # metres of the engine's pitch
_METRES_PER_Y = 83.6  # the engine's y is 0.42 at the touchline, its x is 1 at the goal line
_PIXELS_PER_METRE = 5.3

_STRIPES = ((58, 125, 68), (52, 115, 62))
_SURROUND = (40, 92, 50)
_LINE = (232, 240, 232)
_BAR = (24, 28, 36)
_TEXT, _FAINT = (240, 242, 245), (150, 158, 170)
_LEFT, _RIGHT = (230, 57, 70), (69, 123, 230)
_RIM = (20, 24, 30)
_RING = (255, 214, 64)
_BALL = (255, 255, 255)

_Colour = tuple[int, int, int]


def _at(x: float, y: float) -> tuple[float, float]:
    """Metres from the centre spot → pixels of the enlarged picture."""
    return (
        _SCALE * (WIDTH / 2 + x * _PIXELS_PER_METRE),
        _SCALE * (_TOP + (HEIGHT - _TOP) / 2 + y * _PIXELS_PER_METRE),
    )


def _box(x: float, y: float, rx: float, ry: float) -> tuple[float, float, float, float]:
    return (*_at(x - rx, y - ry), *_at(x + rx, y + ry))


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * _SCALE)


@functools.cache
def _pitch() -> Image.Image:
    """Grass, lines and goals, enlarged."""
    image = Image.new("RGB", (WIDTH * _SCALE, HEIGHT * _SCALE), _SURROUND)
    draw = ImageDraw.Draw(image)
    stripes = 12
    step = 2 * _HALF_LENGTH / stripes
    for i in range(stripes):
        left = -_HALF_LENGTH + i * step
        draw.rectangle((*_at(left, -_HALF_WIDTH), *_at(left + step, _HALF_WIDTH)), fill=_STRIPES[i % 2])
    line = 2 * _SCALE
    draw.rectangle(_box(0, 0, _HALF_LENGTH, _HALF_WIDTH), outline=_LINE, width=line)
    draw.line((*_at(0, -_HALF_WIDTH), *_at(0, _HALF_WIDTH)), fill=_LINE, width=line)
    draw.ellipse(_box(0, 0, 9.15, 9.15), outline=_LINE, width=line)
    draw.ellipse(_box(0, 0, 0.5, 0.5), fill=_LINE)
    for side in (-1, 1):
        goal_line, spot = side * _HALF_LENGTH, side * (_HALF_LENGTH - 11)
        for depth, half in ((16.5, 20.16), (5.5, 9.16)):
            draw.rectangle(_box(goal_line - side * depth / 2, 0, depth / 2, half), outline=_LINE, width=line)
        draw.ellipse(_box(spot, 0, 0.5, 0.5), fill=_LINE)
        towards = 0 if side < 0 else 180  # the arc outside the penalty area: 53.1° to both sides
        draw.arc(_box(spot, 0, 9.15, 9.15), towards - 53.1, towards + 53.1, fill=_LINE, width=line)
        for top in (-1, 1):
            start = {(-1, -1): 0, (1, -1): 90, (1, 1): 180, (-1, 1): 270}[side, top]
            corner = _box(goal_line, top * _HALF_WIDTH, 1.5, 1.5)
            draw.arc(corner, start, start + 90, fill=_LINE, width=line)
        _goal(draw, side)
    return image


def _goal(draw: ImageDraw.ImageDraw, side: int) -> None:
    """Draw a goal behind its line: posts and net."""
    line, half, depth = side * _HALF_LENGTH, 3.7, 2.6
    back = line + side * depth
    low, high = sorted((line, back))
    draw.rectangle((*_at(low, -half), *_at(high, half)), fill=(70, 110, 78))
    for y in np.linspace(-half, half, 7):
        draw.line((*_at(low, y), *_at(high, y)), fill=(150, 178, 154), width=_SCALE)
    for x in np.linspace(low, high, 3):
        draw.line((*_at(x, -half), *_at(x, half)), fill=(150, 178, 154), width=_SCALE)
    draw.line([_at(line, -half), _at(back, -half), _at(back, half), _at(line, half)], fill=_LINE, width=2 * _SCALE)


def _cells(plane: npt.NDArray[np.uint8]) -> list[tuple[float, float]]:
    """Centres of a plane's marked cells, metres from the centre spot."""
    y, x = cell_centres(plane.shape)
    rows, columns = np.nonzero(plane)
    return [(float(x[c]) * _HALF_LENGTH, float(y[r]) * _METRES_PER_Y) for r, c in zip(rows, columns, strict=True)]


def _disc(draw: ImageDraw.ImageDraw, at: tuple[float, float], radius: float, fill: _Colour) -> None:
    """Draw a rimmed disc; the radius is in pixels of the final picture."""
    x, y = _at(*at)
    r = radius * _SCALE
    draw.ellipse((x - r, y - r, x + r, y + r), fill=fill, outline=_RIM, width=round(1.2 * _SCALE))


def _score_line(draw: ImageDraw.ImageDraw, score: tuple[int, int], title: str, steps_left: int | None) -> None:
    draw.rectangle((0, 0, WIDTH * _SCALE, _TOP * _SCALE), fill=_BAR)
    middle, base = WIDTH / 2 * _SCALE, _TOP / 2 * _SCALE
    draw.text((middle, base), f"{score[0]} : {score[1]}", fill=_TEXT, font=_font(24), anchor="mm")
    for sign, name, colour in ((-1, "left", _LEFT), (1, "right", _RIGHT)):
        x = middle + sign * 52 * _SCALE
        r = 6 * _SCALE
        draw.ellipse((x - r, base - r, x + r, base + r), fill=colour)
        anchor = "rm" if sign < 0 else "lm"
        draw.text((x + sign * 13 * _SCALE, base), name, fill=_TEXT, font=_font(16), anchor=anchor)
    edge = 14 * _SCALE
    draw.text((edge, base), title, fill=_FAINT, font=_font(11), anchor="lm")
    if steps_left is not None:
        text = f"{steps_left} steps left"
        draw.text((WIDTH * _SCALE - edge, base), text, fill=_FAINT, font=_font(11), anchor="rm")


def draw_pitch(
    planes: npt.NDArray[np.uint8],
    score: tuple[int, int],
    *,
    title: str = "",
    steps_left: int | None = None,
) -> npt.NDArray[np.uint8]:
    """Draw one observation.

    Positions are as exact as the planes, to a cell of about one metre; two players in one cell are drawn as one.

    Args:
        planes: [72, 96, 4] uint8: left team, right team, ball and active player, marked by non-zero values.
        score: goals of the left and of the right team.
        title: shown on the left of the score line.
        steps_left: in the match; None: not shown.

    Returns:
        An RGB picture [464, 640, 3] uint8.
    """
    if planes.shape != PLANES:
        raise ValueError(f"planes must be {list(PLANES)}, not {list(planes.shape)}")
    image = _pitch().copy()
    draw = ImageDraw.Draw(image)
    for index, colour in ((RIGHT_TEAM, _RIGHT), (LEFT_TEAM, _LEFT)):
        for player in _cells(planes[:, :, index]):
            _disc(draw, player, 7, colour)
    for player in _cells(planes[:, :, ACTIVE]):
        x, y = _at(*player)
        r = 10.5 * _SCALE
        draw.ellipse((x - r, y - r, x + r, y + r), outline=_RING, width=round(2.2 * _SCALE))
    for ball in _cells(planes[:, :, BALL]):
        _disc(draw, ball, 4.5, _BALL)
    _score_line(draw, score, title, steps_left)
    return np.asarray(image.reduce(_SCALE))
