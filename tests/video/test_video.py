"""Videos: rendering, file formats, and errors."""

import importlib
import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import opengl as opengl_support
from support.children import environment

from purejaxppo.config.installation import install_extra
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs.adapted import BaseTask
from purejaxppo.envs.registry import make_task
from purejaxppo.video import charts, mujoco_scene, video

pytest.importorskip("PIL")

PENDULUM = """
<mujoco>
  <worldbody>
    <geom type="plane" size="5 5 1"/>
    <body pos="0 0 1"><joint type="hinge" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0.6 0 0" size="0.06" rgba="1 0 0 1"/>
    </body>
    <geom type="box" size="0.1 0.1 0.1" pos="0 0 1" rgba="0 0 1 1"/>
  </worldbody>
</mujoco>
"""


def episode(name, steps):
    """Return (task, steps + 1 states) of an episode with constant actions."""
    task = make_task(EnvConfig(name=name))
    key = jax.random.key(0)
    state, _ = jax.jit(task.reset)(key)
    states, step = [state], jax.jit(task.step)
    action = jnp.zeros(getattr(task.action, "shape", ()), jnp.int32)
    for _ in range(steps):
        state, _ = step(key, state, action)
        states.append(state)
    return task, jax.device_get(states)


@pytest.fixture(scope="module")
def cartpole():
    pytest.importorskip("gymnax")
    return episode("gymnax/CartPole-v1", 20)


@pytest.fixture
def model():
    mujoco = pytest.importorskip("mujoco")
    return mujoco.MjModel.from_xml_string(PENDULUM)


def red(frame):
    """Return where the frame is red, bool [H, W]."""
    r, g, b = np.moveaxis(frame.astype(int), -1, 0)
    return (r > 2 * g) & (r > 2 * b)


def test_a_gif_has_thinned_frames_that_differ(cartpole, tmp_path):
    from PIL import Image, ImageSequence

    task, states = cartpole
    path = video.record(task, states, tmp_path / "video.gif", title="cartpole")
    with Image.open(path) as image:
        recorded = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(image)]
        assert image.info["duration"] == 40  # 50 states per second, every second one rendered
    assert len(recorded) == 11
    assert all((a != b).any() for a, b in itertools.pairwise(recorded))


def test_mp4_decodes_with_every_frame_at_real_time(cartpole, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    task, states = cartpole
    path = video.record(task, states, tmp_path / "video.mp4")
    command = [ffmpeg, "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert re.search(rb"yuv420p.* 640x480.* 50 fps", done.stderr)
    recorded = np.frombuffer(done.stdout, np.uint8).reshape(-1, 480, 640, 3)
    assert len(recorded) == 21
    drawn = video.frames(task, states)
    assert np.abs(recorded[20, 30:].astype(float) - drawn[20][30:]).mean() < 3


def test_odd_sizes_are_padded_for_the_codec(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "odd.mp4"
    video._write_mp4(path, [np.zeros((31, 33, 3), np.uint8)] * 3, 10.0, "")
    assert path.stat().st_size > 0


@pytest.mark.parametrize("name", ["video.mp4", "video.gif", "video.html"])
def test_a_failure_keeps_an_existing_video(name, tmp_path, monkeypatch):
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / name
    path.write_text("old")

    class Black(BaseTask):
        frame_rate = 10.0

        def draw(self, states, *, height, width):
            return (np.zeros((height, width, 3), np.uint8) for _ in states)

    def fails(partial, frames, rate, title):
        partial.write_text("new")
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(video, f"_write_{path.suffix[1:]}", fails)
    with pytest.raises(RuntimeError, match="the disk is full"):
        video.record(Black(), [0, 1], path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_html_plays_without_a_network(cartpole, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    task, states = cartpole
    path = video.record(task, states, tmp_path / "video.html", title="a <b> title")
    page = path.read_text(encoding="utf-8")
    assert "a &lt;b&gt; title" in page
    assert "data:video/mp4;base64," in page
    page = re.sub(r"base64,[A-Za-z0-9+/=]*", "", page)
    assert not re.search(r"https?:|//|src=\"(?!data:)|<link|@import", page)


@pytest.mark.toy
def test_the_running_return_sums_the_rewards_before_each_state():
    np.testing.assert_array_equal(video._returns([1.0, 2.0, 3.0], 4), [0, 1, 3, 6])
    np.testing.assert_array_equal(video._returns([1.0, 2.0, 3.0], 3), [1, 3, 6])
    assert video._returns([], 3) is None


@pytest.mark.toy
def test_long_gifs_are_thinned_and_fast_simulators_are_shown_in_real_time():
    assert video._pace(125.0, 1000, gif=False) == (4, 31.25)
    assert video._pace(50.0, 1000, gif=False) == (1, 50.0)
    assert video._pace(59.9999999, 1000, gif=False) == (2, pytest.approx(30.0))
    assert video._pace(20.0, 1000, gif=True) == (3, 8.0)


@pytest.mark.toy
def test_thinned_videos_start_with_the_first_state_and_end_with_the_last(tmp_path):
    drawn = []

    class Task(BaseTask):
        frame_rate = 125.0

        def draw(self, states, *, height, width):
            drawn.extend(states)
            return (np.zeros((height, width, 3), np.uint8) for _ in states)

    video.record(Task(), list(range(13)), tmp_path / "video.gif")
    assert drawn == [0, 5, 10, 12]


@pytest.mark.toy
def test_captions_are_in_the_upper_corners_only():
    frame = np.full((60, 300, 3), 90, np.uint8)
    written = video._caption(frame, "left", "step 3")
    assert written.shape == frame.shape and written.dtype == frame.dtype
    np.testing.assert_array_equal(written[video.CAPTION - 1 :], frame[video.CAPTION - 1 :])
    changed = (written[: video.CAPTION] != 90).any(axis=(0, 2))
    assert changed[:60].any() and changed[-60:].any() and not changed[100:200].any()


@pytest.mark.parametrize(
    "name", ["gymnax/Pendulum-v1", "gymnax/Acrobot-v1", "gymnax/MountainCar-v0",
             "gymnax/Breakout-MinAtar", "gymnax/Catch-bsuite", "gymnax/UmbrellaChain-bsuite",
             "dummy/pixels", "dummy/vector"],
)  # fmt: skip
def test_every_kind_of_task_is_rendered_in_the_requested_size(name):
    if name.startswith("gymnax"):
        pytest.importorskip("gymnax")
    recorded = video.frames(*episode(name, 2), height=120, width=160)
    assert [(f.shape, f.dtype) for f in recorded] == 3 * [((120, 160, 3), np.uint8)]
    assert (recorded[0] != recorded[2]).any()


@pytest.mark.toy
def test_images_with_their_channels_first_are_shown_like_those_with_channels_last():
    images = np.random.default_rng(0).integers(0, 256, (2, 36, 40, 3), np.uint8)
    last = list(charts.frames(list(images), height=120, width=160))
    first = list(charts.frames(list(np.moveaxis(images, -1, 1)), height=120, width=160))
    np.testing.assert_array_equal(first, last)
    assert np.std(last[0][30:114, 40:120]) > 40  # not a narrow strip


def draw_frames(model, states, height=120, width=160):
    return mujoco_scene.draw(model, states, height=height, width=width)


@pytest.fixture
def opengl():
    if not opengl_support.draws():
        pytest.skip("no OpenGL here")


@pytest.mark.usefixtures("opengl")
def test_the_rendered_robot_moves_with_its_joint(model):
    states = [(np.array([angle]), None, None) for angle in (0.0, np.pi / 2, 0.0)]
    frames = list(draw_frames(model, states))
    assert [(f.shape, f.dtype) for f in frames] == 3 * [((120, 160, 3), np.uint8)]
    across, down, _ = (np.argwhere(red(f)) for f in frames)
    assert len(across) > 100
    assert np.ptp(across[:, 1]) > np.ptp(across[:, 0])
    assert np.ptp(down[:, 0]) > np.ptp(down[:, 1])
    np.testing.assert_array_equal(frames[0], frames[2])


@pytest.mark.usefixtures("opengl")
def test_motion_capture_bodies_are_rendered_at_their_pose():
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody>
      <geom size="0.01"/>
      <body mocap="true" pos="0.5 0 0"><geom size="0.1" rgba="1 0 0 1"/></body>
    </worldbody></mujoco>""")
    turn = np.array([[1.0, 0, 0, 0]])
    places = (np.array([[x, 0.0, 0.0]]) for x in (-0.3, 0.3))
    left, right = draw_frames(model, [(np.zeros(0), place, turn) for place in places])
    centre = (160 - 1) / 2
    assert np.argwhere(red(left))[:, 1].mean() < centre < np.argwhere(red(right))[:, 1].mean()


@pytest.mark.parametrize("value", ["off", "no such back end"])
def test_without_opengl_the_error_names_the_variable(value, model, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", value)
    with pytest.raises(ValueError, match=f"MUJOCO_GL = {value}: MuJoCo cannot render .* Unset it"):
        list(draw_frames(model, [(np.zeros(1), None, None)]))


def test_without_opengl_the_error_names_the_packages(model, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(mujoco_scene, "GL_BACKENDS", ("off",))
    with pytest.raises(ValueError, match="Run: apt install libosmesa6"):
        list(draw_frames(model, [(np.zeros(1), None, None)]))


@pytest.mark.parametrize("family", ["brax", "playground"])
def test_an_opengl_that_does_not_load_gets_a_one_sentence_error(family):
    pytest.importorskip({"brax": "brax", "playground": "mujoco_playground"}[family])
    command = [sys.executable, "-m", "purejaxppo", "list", "envs", family]
    variables = environment(MUJOCO_GL="absent")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: MUJOCO_GL = absent: MuJoCo cannot be imported with")
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("opengl")
def test_a_driver_that_dies_ends_the_video_but_not_the_run(model):
    frames = draw_frames(model, [(np.zeros(1), None, None)] * 500)
    next(frames)
    children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    for pid in itertools.chain(*children):
        if "gl.py" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(ValueError, match=r"OpenGL failed after \d+ of 500 frames"):
        list(frames)


CAMERA = '<camera pos="0 -1 0"/>'
BODIES = """<body><freejoint/><geom size="0.1"/></body>
  <body><freejoint/><geom size="0.2"/></body><body><joint/><geom size="0.3"/></body>"""


@pytest.mark.parametrize(
    ("bodies", "kind", "tracked"),
    [
        (CAMERA + BODIES, "FIXED", -1),
        (BODIES, "TRACKING", 2),
        ("<body><joint type='slide' axis='1 0 0'/><geom size='1'/></body>", "TRACKING", 1),
        ("<body><joint type='slide' range='-1 1'/><geom size='1'/></body>", "FREE", -1),
        ("<body><joint/><geom size='1'/></body>", "FREE", -1),
    ],
)
def test_models_are_seen_from_their_first_camera_or_behind_their_heaviest_robot(
    bodies, kind, tracked
):
    mujoco = pytest.importorskip("mujoco")
    gl = importlib.import_module("purejaxppo.video.gl")
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{bodies}</worldbody></mujoco>")
    camera = gl.camera_of(model)
    assert camera.type == getattr(mujoco.mjtCamera, f"mjCAMERA_{kind}")
    assert camera.trackbodyid == tracked
    assert camera.fixedcamid == (0 if kind == "FIXED" else -1)


@pytest.mark.usefixtures("opengl")
@pytest.mark.parametrize("height", [0.2, 0.6])
def test_the_picture_contains_the_whole_robot_in_every_pose(height):
    # At 1 m, a field of view of 45 degrees is 0.83 m high: the top of the upper robot is outside.
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody>
      <camera pos="0 -1 0" xyaxes="1 0 0 0 0 1" fovy="45"/>
      <body><joint type="slide" axis="0 0 1"/>
        <geom type="box" size="0.05 0.01 0.05" rgba="1 0 0 1"/></body>
    </worldbody></mujoco>""")
    poses = [(np.array([z]), None, None) for z in (0.0, height - 0.05)]
    _, raised = (np.argwhere(red(frame)) for frame in draw_frames(model, poses))
    top, half = height / 0.99, np.tan(np.radians(22.5))  # the box is nearest at 0.99 m
    half *= max(1.0, 1.05 * top / half)
    assert raised[:, 0].min() == pytest.approx(60 - 60 * top / half, abs=1.5)


def test_large_floors_become_infinite_with_tiles_of_equal_size():
    mujoco = pytest.importorskip("mujoco")
    gl = importlib.import_module("purejaxppo.video.gl")
    model = mujoco.MjModel.from_xml_string("""<mujoco><asset>
      <texture name="t" type="2d" builtin="checker" width="8" height="8"/>
      <material name="floor" texture="t" texrepeat="60 60"/>
      <material name="table" texture="t" texrepeat="60 60"/>
    </asset><worldbody>
      <geom type="plane" size="40 20 1" material="floor"/>
      <geom type="plane" size="1 1 1" material="table"/>
    </worldbody></mujoco>""")
    gl.extend_floors(model)
    np.testing.assert_array_equal(model.geom_size[:, :2], [[0, 0], [1, 1]])
    np.testing.assert_array_equal(model.mat_texrepeat, [[0.75, 1.5], [60, 60]])
    np.testing.assert_array_equal(model.mat_texuniform, [1, 0])


@pytest.mark.usefixtures("opengl")
def test_brax_is_rendered_from_its_joint_positions():
    pytest.importorskip("brax")
    task = make_task(EnvConfig(name="brax/inverted_pendulum"))
    (state, elapsed), _ = jax.jit(task.reset)(jax.random.key(0))
    poses = [state.pipeline_state.replace(q=jnp.array(q)) for q in ([0.0, 0.0], [0.5, 0.6])]
    states = [(state.replace(pipeline_state=pose), elapsed) for pose in poses]
    still, moved = video.frames(task, states, height=120, width=160)
    assert (np.abs(still.astype(int) - moved).max(axis=-1) > 30).sum() > 100


@pytest.mark.toy
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("video.avi", r"video\.avi: a video file must end in \.mp4, \.gif or \.html"),
        ("video", r"a video file must end in \.mp4, \.gif or \.html"),
        ("absent/video.gif", r"the folder .*absent does not exist"),
    ],
)
def test_invalid_video_files_are_rejected(name, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        video.check_target(tmp_path / name)


@pytest.mark.toy
def test_the_error_of_missing_packages_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape(install_extra("render"))):
        video.check_target(tmp_path / "video.gif")
