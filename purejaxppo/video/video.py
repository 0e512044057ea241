"""Videos of episodes: .mp4, .gif, or one .html page that plays without a network.

A task may define its own drawing with

    draw(states, *, height, width) -> an iterator of frames, uint8 [height, width, 3]
    frame_rate: float                 states per second, for videos in real time

Otherwise, `video.charts` draws its observations. Wrappers remove their nesting in `unwrap`.
"""

import base64
import functools
import html
import itertools
import math
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from purejaxppo.config.installation import require
from purejaxppo.interrupts import atomic_write

VIDEO_SUFFIXES = (".mp4", ".gif", ".html")
SLOWEST, SMOOTH = 8.0, 30.0
"""Frames per second: the minimum of a gif, and the minimum for simulators with more states."""
GIF_FASTEST = 25.0
GIF_FRAMES = 400
GIF_COLOURS = 128
HEIGHT, WIDTH = 480, 640
GIF_HEIGHT, GIF_WIDTH = 300, 400
GIF_SMALL_FPS = 10
"""Frames per second of `as_gif`."""
CAPTION = 24
"""Height of the caption in pixels."""


class FfmpegError(ValueError):
    """ffmpeg failed."""


def check_target(path: str | Path) -> None:
    """Check that a video can be written to a path.

    Raises:
        ValueError: the suffix is unknown, the folder does not exist, or a package is missing.
    """
    path = Path(path)
    if path.suffix.lower() not in VIDEO_SUFFIXES:
        raise ValueError(
            f"{path}: a video file must end in {', '.join(VIDEO_SUFFIXES[:-1])} or "
            f"{VIDEO_SUFFIXES[-1]}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist. Create it.")
    check_packages(path)


def check_packages(path: Path) -> None:
    """Raise ValueError if a package for videos with the suffix of `path` is missing."""
    needed = {"PIL": "pillow"}
    if path.suffix.lower() != ".gif":
        needed |= {"imageio_ffmpeg": "imageio-ffmpeg"}
    for module, package in needed.items():
        require(package, "render", module)


def record(
    task: Any, states: list[Any], path: str | Path, *, title: str = "", rewards: Iterable = ()
) -> Path:
    """Write a video of one episode.

    Args:
        task: one environment, as `envs.registry.make_task` returns it.
        states: states of the task, one per step.
        path: path of the file. The suffix selects the format.
        title: text above the frames.
        rewards: rewards, one per step, to show the return so far. Empty: not shown.

    Returns:
        The path.

    Raises:
        ValueError: `states` is empty, or see `check_target`.
    """
    path = Path(path)
    check_target(path)
    if not states:
        raise ValueError(f"cannot write {path}: `states` is empty. Pass the states of an episode.")
    gif = path.suffix.lower() == ".gif"
    stride, rate = _pace(max(SLOWEST, float(task.frame_rate)), len(states), gif=gif)
    steps = [*range(0, len(states) - 1, stride), len(states) - 1]
    height, width = (GIF_HEIGHT, GIF_WIDTH) if gif else (HEIGHT, WIDTH)
    drawn = _draw(task, [states[step] for step in steps], height, width)
    returns = _returns(rewards, len(states))
    captioned = (
        _caption(frame, title, _progress(step, returns))
        for frame, step in zip(drawn, steps, strict=True)
    )
    writer = {".mp4": _write_mp4, ".gif": _write_gif, ".html": _write_html}[path.suffix.lower()]
    with atomic_write(path) as partial:
        try:
            writer(partial, captioned, rate, title or path.stem)
        except FfmpegError as error:
            raise ValueError(f"{path}: ffmpeg failed: {error}") from error
    return path


def frames(
    task: Any, states: list[Any], height: int = HEIGHT, width: int = WIDTH
) -> list[np.ndarray]:
    """Draw one frame per state, uint8 [height, width, 3], without captions."""
    return list(_draw(task, states, height, width))


def _draw(task: Any, states: list[Any], height: int, width: int) -> Iterator[np.ndarray]:
    inner = [task.unwrap(state) for state in states]
    return task.draw(inner, height=height, width=width)


def _pace(rate: float, count: int, *, gif: bool) -> tuple[int, float]:
    """Return the stride between drawn states, and the frames per second.

    With more than `SMOOTH` states per second, at least `SMOOTH` of them are drawn. A gif of a long
    episode has at most `GIF_FRAMES` frames, and plays faster than real time if it would otherwise
    have fewer than `SLOWEST` frames per second.
    """
    if gif:
        stride = max(math.ceil(rate / GIF_FASTEST), math.ceil(count / GIF_FRAMES))
    else:
        stride = max(1, math.floor(rate / SMOOTH + 1e-3))
    return stride, max(SLOWEST, rate / stride)


def _returns(rewards: Iterable, count: int) -> np.ndarray | None:
    """Return the return up to each of `count` states; None without rewards."""
    rewards = np.asarray(list(rewards), np.float64)
    if not rewards.size:
        return None
    total = np.concatenate([np.zeros(max(0, count - rewards.size)), np.cumsum(rewards)])
    return total[:count]


def _progress(step: int, returns: np.ndarray | None) -> str:
    return f"step {step}" if returns is None else f"step {step}   return {returns[step]:.1f}"


def _caption(frame: np.ndarray, left: str, right: str) -> np.ndarray:
    """Write two strings into the upper corners, readable on any background."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(frame[:CAPTION])
    pen = ImageDraw.Draw(image)
    style: Any = {
        "font": _font(),
        "fill": (40, 44, 52),
        "stroke_width": 2,
        "stroke_fill": (250, 250, 248),
    }
    pen.text((8, 5), left, **style)
    pen.text((image.width - 8, 5), right, anchor="ra", **style)
    return np.concatenate([np.asarray(image), frame[CAPTION:]])


@functools.cache
def _font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(12)


def _write_mp4(path: Path, frames: Iterable[np.ndarray], rate: float, title: str) -> None:
    """Write H.264 in yuv420p, which all video players and browsers support.

    An odd width or height is padded by one pixel, because yuv420p requires even sizes. imageio's
    writer is not used, because it forks, and JAX warns about forks.
    """
    del title
    from imageio_ffmpeg import get_ffmpeg_exe  # type: ignore[import-untyped]

    remaining = iter(frames)
    first = next(remaining)
    size = f"{first.shape[1]}x{first.shape[0]}"
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", str(rate), "-i", "-"]
    command += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-c:v", "libx264", "-crf", "21"]
    command += ["-preset", "veryfast"]  # takes half the time of the default, with equal file sizes
    command += ["-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log) as ffmpeg:
            assert ffmpeg.stdin is not None
            try:
                for frame in itertools.chain([first], remaining):
                    ffmpeg.stdin.write(np.ascontiguousarray(frame).data)
            except BrokenPipeError:
                pass  # ffmpeg has failed, and the log contains the reason
            ffmpeg.communicate()
        if ffmpeg.returncode:
            log.seek(0)
            raise FfmpegError(log.read().decode(errors="replace"))


def _write_gif(path: Path, frames: Iterable[np.ndarray], rate: float, title: str) -> None:
    """Write a gif with one palette, from a few frames, to prevent flickering colours."""
    del title
    from PIL import Image

    images = list(frames)
    sample = images[:: max(1, len(images) // 6)]
    palette = Image.fromarray(np.concatenate(sample)).quantize(GIF_COLOURS)
    first, *others = (
        Image.fromarray(image).quantize(palette=palette, dither=Image.Dither.NONE)
        for image in images
    )
    hundredths = max(2, round(100 / rate))  # browsers slow down more than 50 frames per second
    first.save(path, save_all=True, append_images=others, duration=10 * hundredths, loop=0)


def as_gif(path: Path) -> bytes:
    """Convert an mp4 file to a small gif with one palette.

    Raises:
        ValueError: ffmpeg failed.
    """
    from imageio_ffmpeg import get_ffmpeg_exe

    filters = f"fps=min(source_fps\\,{GIF_SMALL_FPS}),scale={GIF_WIDTH}:-1:flags=lanczos"
    filters += ",split[a][b];[a]palettegen[p];[b][p]paletteuse"
    with tempfile.TemporaryDirectory() as folder:
        gif = Path(folder) / "video.gif"
        command = [get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path), "-vf", filters]
        done = subprocess.run([*command, str(gif)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"{path}: ffmpeg failed: {done.stderr}")
        return gif.read_bytes()


def _write_html(path: Path, frames: Iterable[np.ndarray], rate: float, title: str) -> None:
    """Write an HTML page that contains the video."""
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder) / "video.mp4"
        _write_mp4(video, frames, rate, title)
        encoded = base64.b64encode(video.read_bytes()).decode()
    page = PAGE.replace("@TITLE@", html.escape(title)).replace("@VIDEO@", encoded)
    path.write_text(page, encoding="utf-8")


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 660px; }
  h1 { font-size: 1.05rem; font-weight: 600; }
  video { width: 100%; border-radius: 6px; background: #fafaf8; }
  button { font: inherit; padding: 2px 12px; }
  button[aria-pressed="true"] { font-weight: 700; }
</style>
</head>
<body>
<h1>@TITLE@</h1>
<video controls autoplay loop muted playsinline src="data:video/mp4;base64,@VIDEO@"></video>
<p>Speed
  <button data-speed="0.25">¼</button>
  <button data-speed="0.5">½</button>
  <button data-speed="1" aria-pressed="true">1</button>
  <button data-speed="2">2</button>
</p>
<script>
  const video = document.querySelector("video");
  const buttons = [...document.querySelectorAll("button")];
  for (const button of buttons) button.onclick = () => {
    video.playbackRate = Number(button.dataset.speed);
    for (const other of buttons) other.setAttribute("aria-pressed", other === button);
  };
</script>
</body>
</html>
"""
