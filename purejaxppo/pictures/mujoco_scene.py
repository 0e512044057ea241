"""Videos of MuJoCo models: the place of the camera, and the choice of a renderer.

MuJoCo's own renderer runs in a child process (`gl.py`): it picks its OpenGL at import from the
environment variable MUJOCO_GL, and a broken driver kills the process that tries it. EGL is tried
first, then OSMesa; where neither draws, `painter.py` does. MUJOCO_GL=off selects the painter.
"""

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.pictures import painter

OFF = ("disable", "disabled", "off", "false", "0")
VISIBLE_GROUPS = 3
"""MuJoCo draws geoms of groups 0, 1 and 2."""
NEARLY_ALL = 0.9
SMOOTHING = 12
"""Frames before and after the current one over which the camera's place is averaged."""
STILL = 1.8
"""Largest ratio of the whole video's box to a pose's for which the camera does not move."""
SMALLEST = 0.25
"""Part of a model's extent that is shown at least, where no body can leave (`_stays`)."""
MARGIN = 1.05
CHILDREN = 2
"""Processes that render: without a GPU, one leaves half of two cores idle."""
PIPE_BYTES = 2**20
"""The most that Linux grants a pipe; a frame of a video is smaller."""
FREE, SLIDE, HINGE = 0, 2, 3  # mjtJoint


class Poses(NamedTuple):
    """The motion of an episode."""

    qpos: np.ndarray  # [T, nq]
    mocap_pos: np.ndarray  # [T, nmocap, 3]
    mocap_quat: np.ndarray  # [T, nmocap, 4]


class Camera(NamedTuple):
    """MuJoCo's free camera; angles in degrees."""

    lookat: np.ndarray  # [T, 3]
    distance: float
    azimuth: float
    elevation: float


class Scene(NamedTuple):
    """Drawing of an episode's poses without its simulator, as a task does (`pictures.video`)."""

    model: bytes
    """A MuJoCo model, as `mj_saveModel` writes it."""
    frame_rate: float
    """Poses per second."""

    @classmethod
    def of(cls, task: Any) -> "Scene | None":
        """The scene of a task whose `draw` is `by_poses`; None of others, and without a model."""
        owner: Any = posing(task)
        model = None if owner is None else owner.mj_model
        if model is None:
            return None
        import mujoco

        saved = np.empty(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, saved)
        return cls(saved.tobytes(), float(task.frame_rate))

    def draw(self, states: list[tuple], *, height: int, width: int) -> Iterator[np.ndarray]:
        """One frame per pose."""
        import mujoco

        name = "scene.mjb"
        model = mujoco.MjModel.from_binary_path(name, {name: self.model})
        return draw(model, states, height=height, width=width)


def by_poses(draw: Any) -> Any:
    """Marks a task's `draw`, which shows its `mj_model` in the poses of states, and nothing else.

    The task has `pose(state)` -> (qpos, mocap_pos or None, mocap_quat or None) and `frame_rate`.
    """
    draw.by_poses = True
    return draw


def posing(task: Any) -> Any:
    """The task, innermost under its wrappers, whose marked `draw` this one has; None: another."""
    method = getattr(task, "draw", None)
    return getattr(method, "__self__", None) if getattr(method, "by_poses", False) else None


def draw(model: Any, states: list[tuple], *, height: int, width: int) -> Iterator[np.ndarray]:
    """One frame per pose, (qpos, mocap_pos or None, mocap_quat or None)."""
    motion = poses(model, *(None if x[0] is None else x for x in zip(*states, strict=True)))
    return film(model, motion, height=height, width=width)


def poses(model: Any, qpos, mocap_pos=None, mocap_quat=None) -> Poses:
    """The motion; mocap bodies that are not given stay where the model has them."""
    import mujoco

    qpos = np.asarray(qpos, np.float64)
    data = mujoco.MjData(model)
    still = (data.mocap_pos, data.mocap_quat)
    given = [
        np.broadcast_to(default, (len(qpos), *default.shape)) if value is None else value
        for value, default in zip((mocap_pos, mocap_quat), still, strict=True)
    ]
    return Poses(qpos, *(np.asarray(value, np.float64) for value in given))


def film(model: Any, motion: Poses, *, height: int, width: int) -> Iterator[np.ndarray]:
    """Yields one frame per pose, by the first renderer that works."""
    camera = follow(model, motion)
    drawn = 0
    for backend in backends():
        for frame in _rendered(model, motion, camera, backend, (height, width)):
            drawn += 1
            yield frame
        if drawn:
            break
    rest = Poses(*(values[drawn:] for values in motion))
    camera = camera._replace(lookat=camera.lookat[drawn:])
    yield from painter.film(model, rest, camera, height=height, width=width)


def backends() -> tuple[str, ...]:
    """The OpenGL back ends to try, in order; none if MUJOCO_GL switches rendering off."""
    chosen = os.environ.get("MUJOCO_GL", "").lower().strip()
    if chosen in OFF:
        return ()
    first = (chosen,) if chosen in ("glfw", "glx", "wgl", "cgl", "osmesa") else ()
    return tuple(dict.fromkeys((*first, "egl", "osmesa")))


def _rendered(model, motion: Poses, camera: Camera, backend: str, shape) -> Iterator[np.ndarray]:
    """Yields the frames of child processes that render on `backend`; none where that fails.

    They take turns, frame by frame.
    """
    import mujoco

    size = 3 * shape[0] * shape[1]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as children:
        model_path, motion_path = Path(folder) / "model.mjb", Path(folder) / "motion.npz"
        mujoco.mj_saveModel(model, str(model_path))
        np.savez(motion_path, **motion._asdict(), **camera._asdict(), shape=np.array(shape))
        script = [sys.executable, str(Path(__file__).with_name("gl.py"))]
        script += [str(model_path), str(motion_path)]
        turns = min(CHILDREN, len(motion.qpos))
        outputs = []
        for turn in range(turns):
            child = subprocess.Popen(
                [*script, str(turn), str(turns)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "MUJOCO_GL": backend},
            )
            children.callback(child.communicate)
            children.callback(child.kill)
            assert child.stdout
            _widen(child.stdout)
            outputs.append(child.stdout)
        for output in itertools.cycle(outputs):
            if len(image := output.read(size)) < size:
                return
            yield np.frombuffer(image, np.uint8).reshape(*shape, 3)


def _widen(pipe: Any) -> None:
    """Lets a pipe hold a frame, where the system can, so that its writer goes on to the next."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def visible(model: Any) -> np.ndarray:
    """Mask of the geoms that are drawn, bool [ngeom]."""
    return (model.geom_group < VISIBLE_GROUPS) & (model.geom_rgba[:, 3] > 0)


def _moving(model: Any) -> np.ndarray:
    """Mask of the geoms that move: of the heaviest floating tree, else of all jointed bodies."""
    shown = visible(model) & (model.geom_type != 0)
    jointed = shown & (model.body_weldid[model.geom_bodyid] != 0)
    floating = {int(model.body_rootid[body]) for body in model.jnt_bodyid[model.jnt_type == FREE]}
    if floating:
        robot = max(floating, key=lambda body: model.body_subtreemass[body])
        jointed &= model.body_rootid[model.geom_bodyid] == robot
    return jointed if jointed.any() else shown


def _boxes(model: Any, motion: Poses) -> tuple[np.ndarray, np.ndarray]:
    """The corners [T, 3] of the box around the moving geoms, at every pose."""
    import mujoco

    data, geoms = mujoco.MjData(model), _moving(model)
    if not geoms.any():
        poses, half = (len(motion.qpos), 1), 0.5 * model.stat.extent
        return np.tile(model.stat.center - half, poses), np.tile(model.stat.center + half, poses)
    reach = model.geom_rbound[geoms, None]
    low, high = [], []
    for pose in zip(*motion, strict=True):
        place(model, data, pose)
        centres = data.geom_xpos[geoms]
        low.append((centres - reach).min(axis=0))
        high.append((centres + reach).max(axis=0))
    return np.nan_to_num(np.stack(low)), np.nan_to_num(np.stack(high))


def place(model: Any, data: Any, pose: tuple) -> None:
    """Puts the bodies of `data` where the pose (qpos, mocap_pos, mocap_quat) has them."""
    import mujoco

    data.qpos[:], data.mocap_pos[:], data.mocap_quat[:] = pose
    mujoco.mj_kinematics(model, data)


def follow(model: Any, motion: Poses) -> Camera:
    """A camera, fixed if the whole motion fits or has limits, that else follows it smoothly."""
    low, high = _boxes(model, motion)
    half = np.median(high - low, axis=0) / 2
    whole_low, whole_high = low.min(axis=0), high.max(axis=0)
    whole = (whole_high - whole_low) / 2
    stays, size = _stays(model), np.linalg.norm(whole)
    if stays or size <= STILL * np.linalg.norm(half):
        half = whole * max(1.0, stays * SMALLEST * model.stat.extent / max(size, 1e-9))
        lookat = np.tile((whole_low + whole_high) / 2, (len(low), 1))
    else:
        lookat = _smooth((low + high) / 2, SMOOTHING)
    azimuth, elevation = _direction(model, motion)
    right, up, forward = np.abs(painter.axes(azimuth, elevation)) @ half
    slope = np.tan(np.radians(model.vis.global_.fovy) / 2)
    distance = MARGIN * max(up, 0.75 * right) / slope + 0.5 * forward
    return Camera(lookat, distance, azimuth, elevation)


def _stays(model: Any) -> bool:
    """True if no joint lets a body go further than its limits, as on a table."""
    slides = model.jnt_type == SLIDE
    return FREE not in model.jnt_type and slides.any() and bool(model.jnt_limited[slides].all())


def _smooth(path: np.ndarray, half: int) -> np.ndarray:
    """The centred mean over 2 half + 1 points of path [T, 3], exact at both ends."""
    padded = np.pad(path, ((half, half), (0, 0)), mode="reflect", reflect_type="odd")
    window = np.ones(2 * half + 1) / (2 * half + 1)
    return np.stack([np.convolve(axis, window, mode="valid") for axis in padded.T], axis=1)


def _direction(model: Any, motion: Poses) -> tuple[float, float]:
    """Azimuth and elevation: across the plane of a planar robot, else from above a corner."""
    import mujoco

    data = mujoco.MjData(model)
    place(model, data, tuple(values[0] for values in motion))
    axes = np.abs(data.xaxis[model.jnt_type == HINGE])
    if FREE not in model.jnt_type and len(axes):
        x, y, z = axes.mean(axis=0)
        if y > NEARLY_ALL:
            return 90.0, -10.0
        if x > NEARLY_ALL:
            return 180.0, -10.0
        if z > NEARLY_ALL:
            return 90.0, -65.0
    return 120.0, -20.0
