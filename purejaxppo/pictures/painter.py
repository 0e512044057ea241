"""A small software renderer for MuJoCo models: no OpenGL, no display, only numpy and Pillow.

Geoms become quadrilaterals, drawn from far to near (the painter's algorithm) with one light; the
floor is a checkerboard, ray by ray, so that motion over it is visible.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

VISIBLE_GROUPS = 3
PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = 0, 2, 3, 4, 5, 6, 7  # mjtGeom
ROUND, RINGS = 16, 5
MAX_MESH_FACES = 4000
SKY, HORIZON = np.array([176.0, 200.0, 224.0]), np.array([232.0, 238.0, 242.0])
TILES = np.array([118.0, 132.0, 146.0]), np.array([196.0, 204.0, 210.0])
LIGHT = np.array([0.25, -0.35, 0.9]) / np.linalg.norm([0.25, -0.35, 0.9])
NEAR = 0.05


class Shape(NamedTuple):
    """A geom's surface in its own frame."""

    vertices: np.ndarray  # [V, 3]
    faces: np.ndarray  # [F, 4] counter-clockwise from outside; a triangle repeats its last


class View(NamedTuple):
    """A pinhole camera."""

    position: np.ndarray  # [3]
    axes: np.ndarray  # [3, 3] rows: right, up, forward
    focal: float  # pixels
    centre: np.ndarray  # [2] pixels


def film(model: Any, motion: Any, camera: Any, *, height: int, width: int) -> Iterator[np.ndarray]:
    """Yields one frame per pose of `motion`, seen from `camera`."""
    import mujoco

    data = mujoco.MjData(model)
    surface = _surface(model)
    floor = _floor(model)
    for lookat, *pose in zip(camera.lookat, *motion, strict=True):
        data.qpos[:], data.mocap_pos[:], data.mocap_quat[:] = pose
        mujoco.mj_kinematics(model, data)
        view = _view(camera, lookat, model.vis.global_.fovy, (height, width))
        ground = None if floor is None else float(data.geom_xpos[floor][2])
        yield _paint(surface, data, view, ground, camera.distance / 4, (height, width))


def axes(azimuth: float, elevation: float) -> np.ndarray:
    """Right, up and forward, the rows of [3, 3], of MuJoCo's free camera; angles in degrees."""
    azimuth, elevation = np.radians([azimuth, elevation])
    flat = np.array([np.cos(azimuth), np.sin(azimuth), 0.0])
    forward = np.cos(elevation) * flat + [0.0, 0.0, np.sin(elevation)]
    right = np.array([np.sin(azimuth), -np.cos(azimuth), 0.0])
    return np.stack([right, np.cross(right, forward), forward])


def _view(camera: Any, lookat: np.ndarray, fovy: float, shape: tuple) -> View:
    towards = axes(camera.azimuth, camera.elevation)
    focal = shape[0] / 2 / np.tan(np.radians(fovy) / 2)
    position = lookat - camera.distance * towards[2]
    return View(position, towards, focal, np.array(shape[::-1]) / 2)


class Surface(NamedTuple):
    """All geoms that are drawn, in one array each."""

    vertices: np.ndarray  # [V, 3] in the frames of their geoms
    owner: np.ndarray  # [V] the geom of each vertex
    faces: np.ndarray  # [F, 4]
    colours: np.ndarray  # [F, 3] 0..255


def _surface(model: Any) -> Surface:
    vertices, owner, faces, colours, count = [], [], [], [], 0
    for geom in range(model.ngeom):
        colour = _colour(model, geom)
        shape = _shape(model, geom)
        if shape is None or colour[3] < 0.2 or model.geom_group[geom] >= VISIBLE_GROUPS:
            continue
        vertices.append(shape.vertices)
        owner.append(np.full(len(shape.vertices), geom))
        faces.append(shape.faces + count)
        colours.append(np.tile(255 * colour[:3], (len(shape.faces), 1)))
        count += len(shape.vertices)
    if not vertices:
        empty = np.zeros((0, 3))
        return Surface(empty, np.zeros(0, int), np.zeros((0, 4), int), empty)
    return Surface(*(np.concatenate(parts) for parts in (vertices, owner, faces, colours)))


def _colour(model: Any, geom: int) -> np.ndarray:
    """A geom's own colour, else its material's; never black or white, so that shading shows."""
    rgba = model.geom_rgba[geom].astype(float)
    material = model.geom_matid[geom]
    if material >= 0 and np.allclose(rgba, (0.5, 0.5, 0.5, 1.0)):
        rgba = model.mat_rgba[material].astype(float)
    return np.append(np.clip(rgba[:3], 0.12, 0.95), rgba[3])


def _floor(model: Any) -> int | None:
    """The first visible horizontal plane, if there is one."""
    for geom in np.flatnonzero(model.geom_type == PLANE):
        w, x, y, _ = model.geom_quat[geom]
        level = abs(x) < 1e-3 and abs(y) < 1e-3 and abs(w) > 0
        if level and model.geom_bodyid[geom] == 0 and model.geom_rgba[geom, 3] > 0:
            return int(geom)
    return None


def _shape(model: Any, geom: int) -> Shape | None:
    kind, (a, b, c) = model.geom_type[geom], model.geom_size[geom]
    arc = np.linspace(-np.pi / 2, np.pi / 2, 2 * RINGS + 1)
    ball = np.stack([np.cos(arc), np.sin(arc)], 1)
    if kind in (SPHERE, ELLIPSOID):
        sphere = _revolve(ball)
        scale = np.array([a, a, a] if kind == SPHERE else [a, b, c])
        return sphere._replace(vertices=sphere.vertices * scale)
    if kind == CAPSULE:
        ends = [a * ball[: RINGS + 1] - [0, b], a * ball[RINGS:] + [0, b]]
        middle = np.stack([np.full(3, a), np.linspace(-b, b, 5)[1:-1]], 1)
        return _revolve(np.concatenate([ends[0], middle, ends[1]]))
    if kind == CYLINDER:
        side = np.stack([np.full(4, a), np.linspace(-b, b, 4)], 1)
        return _revolve(np.array([[0, -b], [a / 2, -b], *side, [a / 2, b], [0, b]]))
    if kind == BOX:
        return _box(np.array([a, b, c]))
    if kind == MESH:
        return _mesh(model, int(model.geom_dataid[geom]))
    return None


def _revolve(profile: np.ndarray) -> Shape:
    """Turns the profile [P, (radius, z)], upwards, around z."""
    turn = np.linspace(0, 2 * np.pi, ROUND, endpoint=False)
    rings = [
        np.stack([r * np.cos(turn), r * np.sin(turn), np.full(ROUND, z)], 1) for r, z in profile
    ]
    low = np.arange(ROUND)
    ring = np.stack([low, (low + 1) % ROUND, (low + 1) % ROUND + ROUND, low + ROUND], 1)
    faces = [ring + ROUND * i for i in range(len(profile) - 1)]
    return Shape(np.concatenate(rings), np.concatenate(faces))


def _box(half: np.ndarray, parts: int = 4) -> Shape:
    """A box, its sides cut into patches so that depth sorts well."""
    t = np.linspace(-1, 1, parts + 1)
    u, v = (axis.ravel() for axis in np.meshgrid(t, t, indexing="ij"))
    corner = (np.arange(parts)[:, None] * (parts + 1) + np.arange(parts)).ravel()
    patch = corner[:, None] + [0, parts + 1, parts + 2, 1]
    vertices: list[np.ndarray] = []
    faces: list[np.ndarray] = []
    for axis in range(3):
        for sign in (-1, 1):
            side = np.zeros((len(u), 3))
            side[:, axis] = sign
            side[:, (axis + 1) % 3], side[:, (axis + 2) % 3] = u, v
            faces.append((patch if sign > 0 else patch[:, ::-1]) + len(u) * len(faces))
            vertices.append(side * half)
    return Shape(np.concatenate(vertices), np.concatenate(faces))


def _mesh(model: Any, mesh: int) -> Shape:
    """A mesh's triangles; the box around it where they are too many to paint."""
    first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
    vertices = model.mesh_vert[first : first + count].astype(float)
    if model.mesh_facenum[mesh] > MAX_MESH_FACES:
        low, high = vertices.min(axis=0), vertices.max(axis=0)
        box = _box((high - low) / 2)
        return box._replace(vertices=box.vertices + (low + high) / 2)
    first, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    triangles = model.mesh_face[first : first + count]
    return Shape(vertices, triangles[:, [0, 1, 2, 2]])


def _paint(surface: Surface, data: Any, view: View, ground, tile: float, shape: tuple):
    """Paints one picture, drawn at twice its size and reduced."""
    from PIL import Image, ImageDraw

    height, width = shape
    rotation = data.geom_xmat.reshape(-1, 3, 3)[surface.owner]
    vertices = np.einsum("vij,vj->vi", rotation, surface.vertices) + data.geom_xpos[surface.owner]
    corners = vertices[surface.faces]  # [F, 4, 3]
    normals = np.cross(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)

    background = _background(view, ground, tile, shape)
    image = Image.fromarray(background).resize((2 * width, 2 * height), Image.Resampling.BILINEAR)
    if ground is not None and view.position[2] > ground:
        mask = Image.new("L", image.size)
        _polygons(ImageDraw.Draw(mask), _shadow(corners, ground), view, np.full(len(corners), 90))
        image.paste((40, 48, 60), mask=mask)

    seen = np.einsum("fi,fi->f", normals, view.position - corners.mean(axis=1)) > 0
    brightness = 0.5 + 0.5 * np.clip(normals[seen] @ LIGHT, -0.4, 1)
    shades = (surface.colours[seen] * brightness[:, None]).astype(np.uint8)
    _polygons(ImageDraw.Draw(image), corners[seen], view, shades)
    return np.asarray(image.reduce(2))


def _shadow(corners: np.ndarray, ground: float) -> np.ndarray:
    """Every face's shadow on the floor, from the light; faces below the floor collapse."""
    above = np.maximum(corners[..., 2:] - ground, 0)
    fallen = corners - above / LIGHT[2] * LIGHT
    fallen[..., 2] = ground
    return fallen


def _polygons(pen: Any, corners: np.ndarray, view: View, colours: np.ndarray) -> None:
    """Draws faces [F, 4, 3], far ones first; colours [F] or [F, 3]."""
    seen = (corners - view.position) @ view.axes.T  # right, up, forward
    depth = seen[..., 2]
    front = depth.min(axis=1) > NEAR
    order = np.flatnonzero(front)[np.argsort(-depth[front].mean(axis=1))]
    points = view.focal * seen[order, :, :2] * [1, -1] / depth[order, :, None] + view.centre
    for outline, colour in zip(
        (2 * points).reshape(-1, 8).tolist(), colours[order].tolist(), strict=True
    ):
        pen.polygon(outline, fill=tuple(colour) if isinstance(colour, list) else colour)


def _background(view: View, ground: float | None, tile: float, shape: tuple) -> np.ndarray:
    """Sky, and the checkered floor that fades towards the horizon; uint8 [height, width, 3]."""
    height, width = shape
    x = (np.arange(width) + 0.5 - view.centre[0]) / view.focal
    y = (view.centre[1] - np.arange(height) - 0.5) / view.focal
    up = view.axes[2, 2] + y * view.axes[1, 2]  # [height]; the right axis is level
    sky = HORIZON + np.clip(2.5 * up, 0, 1)[:, None] * (SKY - HORIZON)
    picture = np.repeat(sky[:, None], width, axis=1)
    below = up < -1e-3
    if ground is None or view.position[2] <= ground or not below.any():
        return picture.astype(np.uint8)
    reach = (ground - view.position[2]) / up[below]  # [rows] distance along the ray
    rays = view.axes[2] + y[below, None, None] * view.axes[1] + x[None, :, None] * view.axes[0]
    hit = view.position[:2] + reach[:, None, None] * rays[..., :2]
    waves = np.sin(np.pi * hit[..., 0] / tile) * np.sin(np.pi * hit[..., 1] / tile)
    # A pixel covers about reach / (focal * slope) of the floor: beyond a tile the squares blur.
    footprint = reach / view.focal * np.maximum(1, 1 / np.abs(up[below])) / tile
    sharp = 0.6 / np.maximum(footprint, 1e-3)[:, None]
    share = 0.5 + 0.5 * np.clip(waves * sharp, -1, 1)
    floor = TILES[0] + share[..., None] * (TILES[1] - TILES[0])
    haze = np.clip(reach * np.linalg.norm(view.axes[2, :2]) / (60 * tile), 0, 1)[:, None, None]
    picture[below] = floor + haze * (HORIZON - floor)
    return picture.astype(np.uint8)
