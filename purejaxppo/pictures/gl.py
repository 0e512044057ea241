"""A child process that renders a MuJoCo video: `python gl.py model.mjb motion.npz 0 1 > frames`.

The numbers are those of its first frame and of the processes that take turns.

It imports nothing of the library, so that it starts quickly, and it leaves by `os._exit`: drivers
are known to fail while they close.
"""

import os
import sys

import mujoco
import numpy as np

TILES = (70, 80, 92), (124, 131, 138)
TILES_ACROSS = 24
HARSH = 150
LARGE = 10.0
SHADOWS = 1024
"""Pixels across the map of shadows; MuJoCo's 4096 take a third of the time without a GPU."""
BACKDROP = (0.80, 0.86, 0.92, 1.0)
SHARP = 24
"""Difference of green between neighbours, of 255, that makes an edge."""


def main(model_path: str, motion_path: str, first: str = "0", stride: str = "1") -> None:
    """Writes every `stride`-th frame from the `first` on as raw uint8 RGB to standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # drivers print; only frames may reach the parent
    model = mujoco.MjModel.from_binary_path(model_path)
    film = np.load(motion_path)
    height, width = (int(n) for n in film["shape"])
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)
    model.vis.quality.shadowsize = min(SHADOWS, model.vis.quality.shadowsize)
    model.vis.quality.offsamples = 0  # more samples take longer than `smooth` without a GPU
    soften(model)
    endless_floor(model)
    # A wider map of shadows than the picture leaves dark streaks at its edge.
    clip = float(film["distance"]) / model.stat.extent
    model.vis.map.shadowclip = min(clip, model.vis.map.shadowclip)
    data = mujoco.MjData(model)
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE
    for name in ("distance", "azimuth", "elevation"):
        setattr(camera, name, float(film[name]))
    # Lights of the world move with the camera, since shadows have a limited range.
    fixed = (model.light_bodyid == 0) & (model.light_mode == mujoco.mjtCamLight.mjCAMLIGHT_FIXED)
    renderer = mujoco.Renderer(model, height, width)
    mine = slice(int(first), None, int(stride))
    motion = (film[name][mine] for name in ("qpos", "mocap_pos", "mocap_quat", "lookat"))
    for pose in zip(*motion, strict=True):
        data.qpos[:], data.mocap_pos[:], data.mocap_quat[:], camera.lookat[:] = pose
        mujoco.mj_forward(model, data)
        data.light_xpos[fixed, :2] += camera.lookat[:2] - film["lookat"][0, :2]
        renderer.update_scene(data, camera)
        dress(renderer.scene, model, data, camera)
        out.write(smooth(renderer.render()).data)
    out.flush()


def smooth(picture):
    """Blends the pixels at sharp edges with their neighbours, uint8 [H, W, 3]: antialiasing."""
    green = picture[..., 1].astype(np.int16)
    edge = np.zeros(green.shape, bool)
    for axis in (0, 1):
        sharp = np.abs(np.diff(green, axis=axis)) > SHARP
        before, after = (np.moveaxis(edge, axis, 0)[part] for part in (slice(-1), slice(1, None)))
        before |= np.moveaxis(sharp, axis, 0)
        after |= np.moveaxis(sharp, axis, 0)
    edge[[0, -1]] = edge[:, [0, -1]] = False
    pixels, at = picture.reshape(-1, 3), np.flatnonzero(edge)
    total = 4 * pixels[at].astype(np.uint16)
    for neighbour in (1, -1, picture.shape[1], -picture.shape[1]):
        total += pixels[at + neighbour]
    blended = pixels.copy()
    blended[at] = total // 8
    return blended.reshape(picture.shape)


def endless_floor(model) -> None:
    """Makes large floors infinite, for robots that run beyond their edges."""
    planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    large = planes & (model.geom_size[:, :2].min(axis=1) >= LARGE)
    for material in np.unique(model.geom_matid[large]):
        if material >= 0 and not model.mat_texuniform[material]:
            size = model.geom_size[large & (model.geom_matid == material)][0, :2]
            model.mat_texrepeat[material] /= 2 * size  # repeats per plane become repeats per metre
            model.mat_texuniform[material] = 1
    model.geom_size[large, :2] = 0


def soften(model) -> None:
    """Makes black and white floors grey, which flicker less in a video; removes reflections."""
    model.mat_reflectance[:] = 0
    model.vis.headlight.ambient[:] = np.maximum(model.vis.headlight.ambient, 0.3)
    for texture in np.unique(model.mat_texid[model.mat_texid >= 0]):
        first = model.tex_adr[texture]
        size = model.tex_height[texture] * model.tex_width[texture] * model.tex_nchannel[texture]
        pixels = model.tex_data[first : first + size]
        shades = np.unique(pixels)
        if len(shades) == 2 and np.ptp(shades) > HARSH and model.tex_nchannel[texture] == 3:
            tiles = np.where(pixels.reshape(-1, 3) == shades[1], TILES[1], TILES[0])
            model.tex_data[first : first + size] = tiles.ravel()


def dress(scene, model, data, camera) -> None:
    """Adds tiles to a plain floor, and a sky in place of a black background."""
    has_sky = bool(np.any(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX))
    if not has_sky:
        _backdrop(scene, camera)
    for plane in np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE):
        material = model.geom_matid[plane]
        textured = material >= 0 and np.any(model.mat_texid[material] >= 0)
        upright = data.geom_xmat[plane][8] > 0.99
        if not textured and upright and model.geom_rgba[plane, 3] > 0:
            _tiles(scene, camera, data.geom_xpos[plane][2])
            return


def _add(scene, size, position, rotation, rgba) -> None:
    if scene.ngeom < scene.maxgeom:
        geom = scene.geoms[scene.ngeom]
        box = mujoco.mjtGeom.mjGEOM_BOX
        mujoco.mjv_initGeom(geom, box, size, position, rotation, np.array(rgba, np.float32))
        scene.ngeom += 1


def _tiles(scene, camera, height: float) -> None:
    side = camera.distance / 4
    first = np.floor(camera.lookat[:2] / side).astype(int) - TILES_ACROSS // 2
    for i in range(TILES_ACROSS):
        for j in range(TILES_ACROSS):
            if (first[0] + i + first[1] + j) % 2 == 0:
                x, y = (first + [i, j] + 0.5) * side
                size = np.array([side / 2, side / 2, 1e-4 * side])
                colour = (0.42, 0.50, 0.58, 1.0)
                _add(scene, size, np.array([x, y, height]), np.eye(3).ravel(), colour)


def _backdrop(scene, camera) -> None:
    azimuth, elevation = np.radians([camera.azimuth, camera.elevation])
    forward = np.array(
        [
            np.cos(elevation) * np.cos(azimuth),
            np.cos(elevation) * np.sin(azimuth),
            np.sin(elevation),
        ]
    )
    right = np.array([np.sin(azimuth), -np.cos(azimuth), 0.0])
    rotation = np.stack([right, np.cross(right, forward), -forward], axis=1)
    far = 12 * camera.distance
    size = np.array([2 * far, 2 * far, 1e-3 * far])
    _add(scene, size, camera.lookat + far * forward, rotation.ravel(), BACKDROP)
    scene.geoms[scene.ngeom - 1].emission = 1.0


if __name__ == "__main__":
    status = 1
    try:
        main(*sys.argv[1:])
        status = 0
    finally:
        os._exit(status)
