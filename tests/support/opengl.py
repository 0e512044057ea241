"""Whether tests can render scenes of MuJoCo."""

import functools
import itertools

import pytest


@functools.cache
def draws() -> bool:
    """Return whether OpenGL works on this machine."""
    mujoco = pytest.importorskip("mujoco")
    from purejaxppo.video import mujoco_scene

    empty = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"
    )
    frames = mujoco_scene.draw(empty, [((), None, None)], height=16, width=16)
    try:
        return len(list(itertools.islice(frames, 1))) == 1
    except ValueError:
        return False
