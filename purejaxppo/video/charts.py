"""Drawings of any environment: images and grids as they are, numbers as charts over time."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from purejaxppo.video.canvas import FAINT, INK, MUTED, SERIES, Canvas

MAX_STRIPS = 10
TOP = 26
EMPTY = (30, 34, 42)


def frames(observations: Sequence[Any], *, height: int, width: int) -> Iterator[np.ndarray]:
    """Yield one frame per observation: its first image, or charts of all its numbers."""
    table = {name: _channels_last(values) for name, values in _leaves(observations).items()}
    image = next((values for values in table.values() if _is_image(values)), None)
    if image is not None:
        return grids(image, height=height, width=width)
    return numbers(table, height=height, width=width)


def _leaves(observations: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return each numeric array of the observations by name, stacked over time."""
    import jax

    table: dict[str, list] = {}
    for observation in observations:
        for path, leaf in jax.tree_util.tree_leaves_with_path(observation):
            if not jax.numpy.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                table.setdefault(name, []).append(np.asarray(leaf))
    return {name: np.stack(values) for name, values in table.items()}


def _channels_last(values: np.ndarray) -> np.ndarray:
    """Move the channels of images [T, C, H, W] to the end, by the rule of `network.channels`."""
    is_first = values.ndim == 4 and values.shape[1] < min(values.shape[2:])
    return np.moveaxis(values, 1, -1) if is_first else values


def _is_image(values: np.ndarray) -> bool:
    smallest = 3 if values.ndim == 4 else 4  # a board of planes may be 3 x 3
    return values.ndim in (3, 4) and min(values.shape[1:3]) >= smallest


def grids(images: np.ndarray, *, height: int, width: int) -> Iterator[np.ndarray]:
    """Enlarge images [T, H, W] or [T, H, W, C]. Each channel of a grid gets a colour."""
    from PIL import Image

    rows, columns = images.shape[1:3]
    scale = min((height - TOP - 12) / rows, (width - 24) / columns)
    scale = int(scale) if scale >= 1 else scale
    size = (max(1, round(columns * scale)), max(1, round(rows * scale)))
    colours = _colours(images)
    for image in images:
        canvas = Canvas(height, width)
        enlarged = Image.fromarray(colours(image)).resize(
            (2 * size[0], 2 * size[1]), Image.Resampling.NEAREST if scale > 1 else None
        )
        corner = (width - size[0], TOP + height - size[1] - 6)
        canvas.image.paste(enlarged, corner)
        if scale >= 12:
            _rule(canvas, corner, (rows, columns), 2 * scale)
        yield canvas.frame()


def _rule(canvas: Canvas, corner: tuple, shape: tuple, cell: int) -> None:
    left, top = corner
    for i in range(shape[0] + 1):
        ends = (left, top + i * cell, left + shape[1] * cell, top + i * cell)
        canvas.pen.line(ends, fill=(58, 63, 72), width=2)
    for j in range(shape[1] + 1):
        ends = (left + j * cell, top, left + j * cell, top + shape[0] * cell)
        canvas.pen.line(ends, fill=(58, 63, 72), width=2)


def _colours(images: np.ndarray):
    """Return a function that converts one image to RGB, uint8 [H, W, 3].

    The number of channels, the type and the range of `images` determine the colours.
    """
    if images.ndim == 4 and images.dtype != np.uint8:
        return _planes
    if images.ndim == 4:
        if images.shape[-1] == 3:
            return lambda image: image
        return lambda image: np.repeat(image[..., -1:], 3, axis=-1)
    low, high = float(np.min(images)), float(np.max(images))

    def ramp(image):
        share = (image.astype(float) - low)[..., None] / max(high - low, 1e-9)
        return (np.array(EMPTY) + share * (np.array([255, 214, 120]) - EMPTY)).astype(np.uint8)

    return ramp


def _planes(image: np.ndarray) -> np.ndarray:
    """Colour each channel of [H, W, C] where it is positive. The lowest channels are on top."""
    frame = np.broadcast_to(np.array(EMPTY, np.uint8), (*image.shape[:2], 3)).copy()
    for channel in reversed(range(image.shape[-1])):
        frame[image[..., channel] > 0] = SERIES[channel % len(SERIES)]
    return frame


def numbers(table: dict[str, np.ndarray], *, height: int, width: int) -> Iterator[np.ndarray]:
    """Draw all numbers of `table` [T, ...] over time: lines for a few, a heat map for many."""
    names, columns = [], []
    for name, values in table.items():
        flat = values.reshape(len(values), -1).astype(float)
        many = flat.shape[1] > 1
        names += [f"{name}[{i}]" if many else name or "value" for i in range(flat.shape[1])]
        columns.append(flat)
    values = np.nan_to_num(np.concatenate(columns, axis=1))  # [T, numbers]
    if len(names) <= MAX_STRIPS:
        return _strips(names, values, height, width)
    return _heat(values, height, width)


def _strips(names: list[str], values: np.ndarray, height: int, width: int) -> Iterator[np.ndarray]:
    """Draw each number as a curve over time, up to the current step."""
    count, left, right = len(names), 110, width - 70
    tall = (height - TOP - 10) / count
    low, high = values.min(axis=0), values.max(axis=0)
    share = (values - low) / np.maximum(high - low, 1e-9)
    share[:, high == low] = 0.5
    x = np.linspace(left, right, max(len(values), 2))[: len(values)]
    y = TOP + tall * (np.arange(count) + 0.9) - 0.8 * tall * share  # [T, numbers]
    for now in range(len(values)):
        canvas = Canvas(height, width)
        canvas.view((0, 0), 1.0, flip=False)
        for i, name in enumerate(names):
            middle = TOP + tall * (i + 0.5)
            canvas.line([(left, TOP + tall * (i + 1)), (right, TOP + tall * (i + 1))], FAINT, 1)
            canvas.text((left - 10, middle), name[-16:], MUTED, 12, "rm")
            canvas.text((right + 8, middle), f"{values[now, i]:.3g}", INK, 12, "lm")
            colour = SERIES[i % len(SERIES)]
            if now:
                canvas.line(np.stack([x[: now + 1], y[: now + 1, i]], 1), colour)
            canvas.circle((x[now], y[now, i]), 3, colour)
        yield canvas.frame()


def _heat(values: np.ndarray, height: int, width: int) -> Iterator[np.ndarray]:
    """Draw a row per number and a column per step: blue below the mean, orange above."""
    from PIL import Image

    centred = values - values.mean(axis=0)
    share = (centred / np.maximum(np.abs(centred).max(axis=0), 1e-9)).T[..., None]
    ends = np.where(share < 0, np.array(SERIES[0]), np.array(SERIES[1]))
    paper = np.array([246.0, 246.0, 244.0])
    heat_map = (paper + np.abs(share) * (ends - paper)).astype(np.uint8)
    left, size = 54, (width - 74, height - TOP - 14)
    enlarged = Image.fromarray(heat_map).resize(
        (2 * size[0], 2 * size[1]), Image.Resampling.NEAREST
    )
    for now in range(len(values)):
        canvas = Canvas(height, width)
        shown_width = max(1, round(2 * size[0] * (now + 1) / len(values)))
        canvas.image.paste(enlarged.crop((0, 0, shown_width, 2 * size[1])), (2 * left, 2 * TOP))
        for row in (0, values.shape[1] - 1):
            at = TOP + size[1] * (row + 0.5) / values.shape[1]
            canvas.text((left - 8, at), str(row), MUTED, 11, "rm")
        canvas.view((0, 0), 1.0, flip=False)
        edge = left + shown_width / 2
        canvas.line([(edge, TOP), (edge, TOP + size[1])], INK, 1)
        yield canvas.frame()
