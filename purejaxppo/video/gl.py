"""A child process that renders a MuJoCo video: `python gl.py model motion height width > frames`.

It starts quickly, because it does not import the library. It ends with `os._exit`, because some
drivers fail when they close.
"""

import itertools
import os
import sys

import mujoco
import numpy as np

LARGE = 10.0
"""Smallest distance in metres from the centre of a floor to its edge. Smaller planes are tables."""
MARGIN, LARGEST = 1.05, 2.0
"""A view that does not contain the moving bodies is widened by at most this factor."""
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
    moving = moving_corners(model)
    shape = int(width) / int(height)
    sizes = [
        relative_size(data, renderer.scene, moving, shape)
        for _ in scenes(model, data, renderer, camera, motion)
    ]
    zoom_out(model, camera, MARGIN * max(sizes, default=0.0))
    for _ in scenes(model, data, renderer, camera, motion):
        out.write(renderer.render().data)
    out.flush()


def scenes(model, data, renderer, camera, motion):
    """Update the scene of a renderer to each pose in turn."""
    for step in range(len(motion["qpos"])):
        for name, values in motion.items():
            getattr(data, name)[:] = values[step]
        mujoco.mj_forward(model, data)
        renderer.update_scene(data, camera)
        yield


def moving_corners(model) -> tuple[np.ndarray, np.ndarray]:
    """Return the visible geoms of moving bodies [G], and the corners of their boxes [G, 8, 3]."""
    moves = model.body_weldid[model.geom_bodyid] != 0
    (geoms,) = np.nonzero(moves & (model.geom_group < 3) & (model.geom_rgba[:, 3] > 0))
    signs = np.array(list(itertools.product((-1, 1), repeat=3)))
    centre, half = np.split(model.geom_aabb.reshape(-1, 6)[geoms], 2, axis=1)
    return geoms, centre[:, None] + signs * half[:, None]


def relative_size(data, scene, moving, shape: float) -> float:
    """Return the size of the picture that contains the moving bodies, relative to the present one.

    Args:
        data: pose of the model.
        scene: scene of this pose, with the camera.
        moving: see `moving_corners`.
        shape: width of the picture divided by its height.
    """
    geoms, corners = moving
    view = scene.camera[0]
    eye = np.mean([camera.pos for camera in scene.camera], axis=0)
    turned = corners @ data.geom_xmat[geoms].reshape(-1, 3, 3).transpose(0, 2, 1)
    offset = data.geom_xpos[geoms][:, None] + turned - eye
    depth = offset @ view.forward
    up, right = offset @ view.up, offset @ np.cross(view.forward, view.up) / shape
    half = depth * (view.frustum_top - view.frustum_bottom) / 2 / view.frustum_near
    sizes = np.maximum(np.abs(up), np.abs(right))[depth > view.frustum_near]
    return float(np.max(sizes / half[depth > view.frustum_near], initial=0.0))


def zoom_out(model, camera, size: float) -> None:
    """Make the picture `size` times as large, within [1, `LARGEST`]."""
    fixed = camera.type == mujoco.mjtCamera.mjCAMERA_FIXED
    field_of_view = model.cam_fovy[camera.fixedcamid] if fixed else model.vis.global_.fovy
    tangent = np.tan(np.radians(field_of_view) / 2) * np.clip(size, 1.0, LARGEST)
    field_of_view = np.degrees(2 * np.arctan(tangent))
    if fixed:
        model.cam_fovy[camera.fixedcamid] = field_of_view
    else:
        model.vis.global_.fovy = field_of_view


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
    """Return the model's first camera, or a free camera that tracks the heaviest robot.

    A robot is a body with a free joint, or with a slide joint without limits.
    """
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    slides = (model.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE) & (model.jnt_limited == 0)
    floating = model.jnt_bodyid[(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE) | slides]
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
