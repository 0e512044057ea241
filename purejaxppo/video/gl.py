"""A child process that renders a MuJoCo video: `python gl.py model motion height width > frames`.

It starts quickly, because it does not import the library. It ends with `os._exit`, because some
drivers fail when they close.
"""

import os
import sys

import mujoco
import numpy as np

LARGE = 10.0
"""Smallest distance in metres from the centre of a floor to its edge. Smaller planes are tables."""
SHADOWS = 1024
"""Width of the shadow map in pixels. MuJoCo's 4096 take a third of the time without a GPU."""


def main(model_path: str, motion_path: str, height: str, width: str) -> None:
    """Write one frame per pose as raw uint8 RGB to standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # drivers print to stdout, which must contain only frames
    model = mujoco.MjModel.from_binary_path(model_path)
    motion = dict(np.load(motion_path))
    cheapen(model)
    extend_floors(model)
    model.vis.global_.offheight, model.vis.global_.offwidth = int(height), int(width)
    data, camera = mujoco.MjData(model), camera_of(model)
    renderer = mujoco.Renderer(model, int(height), int(width))
    for step in range(len(motion["qpos"])):
        for name, values in motion.items():
            getattr(data, name)[:] = values[step]
        mujoco.mj_forward(model, data)
        renderer.update_scene(data, camera)
        out.write(renderer.render().data)
    out.flush()


def cheapen(model) -> None:
    """Turn off effects that take more than half of the time without a GPU."""
    model.vis.quality.shadowsize = min(SHADOWS, model.vis.quality.shadowsize)
    model.vis.quality.offsamples = 0
    model.mat_reflectance[:] = 0


def extend_floors(model) -> None:
    """Make large floors infinite, for robots that run beyond their edges."""
    planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    large = planes & (model.geom_size[:, :2].min(axis=1) >= LARGE)
    for material in np.unique(model.geom_matid[large]):
        if material >= 0 and not model.mat_texuniform[material]:
            size = model.geom_size[large & (model.geom_matid == material)][0, :2]
            model.mat_texrepeat[material] /= 2 * size  # repeats per plane become repeats per metre
            model.mat_texuniform[material] = 1
    model.geom_size[large, :2] = 0


def camera_of(model) -> mujoco.MjvCamera:
    """Return the model's first camera, or a free camera that tracks the heaviest floating body."""
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    floating = model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]
    if model.ncam:
        camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, 0
    elif len(floating):
        camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        camera.trackbodyid = floating[np.argmax(model.body_subtreemass[floating])]
    return camera


if __name__ == "__main__":
    status = 1
    try:
        main(*sys.argv[1:])
        status = 0
    finally:
        os._exit(status)
