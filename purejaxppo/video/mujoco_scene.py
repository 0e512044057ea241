"""Videos of MuJoCo models with MuJoCo's renderer.

The renderer runs in a child process (`gl.py`), because it selects OpenGL at import by the
environment variable MUJOCO_GL, and a broken driver kills the process.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

GL_BACKENDS = ("egl", "osmesa", "")
"""Values of MUJOCO_GL to try. The last one, MuJoCo's default, needs a display."""


def draw(model: Any, states: Sequence[tuple], *, height: int, width: int) -> Iterator[np.ndarray]:
    """Yield one frame per pose, uint8 [height, width, 3], with the first backend that works.

    Args:
        model: a MuJoCo model.
        states: poses, (qpos [nq], mocap_pos [nmocap, 3] or None, mocap_quat [nmocap, 4] or None).
        height: height of a frame, in pixels.
        width: width of a frame, in pixels.

    Raises:
        ValueError: OpenGL is missing, or its driver fails.
    """
    import mujoco

    names = ("qpos", "mocap_pos", "mocap_quat")
    arrays = dict(zip(names, zip(*states, strict=True), strict=True))
    chosen = os.environ.get("MUJOCO_GL")
    drawn = 0
    with tempfile.TemporaryDirectory() as folder:
        model_path, motion_path = Path(folder) / "model.mjb", Path(folder) / "motion.npz"
        mujoco.mj_saveModel(model, str(model_path))
        motion: dict[str, Any] = {
            name: np.stack(rows) for name, rows in arrays.items() if rows[0] is not None
        }
        np.savez(motion_path, **motion)
        for backend in GL_BACKENDS if chosen is None else (chosen,):
            for frame in _rendered(model_path, motion_path, backend, (height, width)):
                drawn += 1
                yield frame
            if drawn:
                break
    if not drawn:
        raise ValueError(_missing(chosen))
    if drawn < len(states):
        raise ValueError(
            f"OpenGL failed after {drawn} of {len(states)} frames. Try another driver."
        )


def _missing(chosen: str | None) -> str:
    """Return the message about missing OpenGL."""
    if chosen is not None:
        return (
            f"MUJOCO_GL = {chosen}: MuJoCo cannot render with it. Unset it to try EGL and OSMesa."
        )
    return (
        "MuJoCo needs OpenGL to render, even without a display. Run: apt install libosmesa6 "
        "(or libegl1 and libgl1 for EGL)"
    )


def _rendered(model_path: Path, motion_path: Path, backend: str, shape) -> Iterator[np.ndarray]:
    """Yield the frames of a child process that renders with `backend`; none if it fails."""
    command = [sys.executable, str(Path(__file__).with_name("gl.py"))]
    command += [str(word) for word in (model_path, motion_path, *shape)]
    size = 3 * shape[0] * shape[1]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MUJOCO_GL": backend},
    ) as child:
        assert child.stdout
        try:
            while len(image := child.stdout.read(size)) == size:
                yield np.frombuffer(image, np.uint8).reshape(*shape, 3)
        finally:
            child.kill()
