"""Drawings of multi-agent environments from above: discs in a rectangle, with walls."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from purejaxppo.video.canvas import BLUE, FAINT, GREEN, MUTED, ORANGE, SERIES, Canvas

ADVERSARIES = ("adversary", "leadadversary", "eve")
"""Prefixes of the names of MPE's adversaries."""
REACH = 1.4, 3.0
"""Smallest and largest half-width of the visible area for MPE and `particles/`. Agents start in
[-1, 1]^2, and the area grows with their positions."""
ROLES = {"hunter": ORANGE, "prey": GREEN}
"""Colours of the roles of `particles/`."""


class Scene(NamedTuple):
    """Contents of one frame, in units of the environment."""

    centres: np.ndarray  # [D, 2]
    radii: np.ndarray  # [D]
    colours: list[tuple]  # of each disc; later discs cover earlier ones
    walls: np.ndarray = np.zeros((0, 2))  # [W, 2] lower corners of squares
    wall_size: float = 1.0


def smax(env: Any, state: Any) -> Scene:
    """Show allies and enemies. Dead units are pale."""
    units = state.state
    sides = [BLUE] * env.num_allies + [ORANGE] * env.num_enemies
    colours = [side if ok else FAINT for side, ok in zip(sides, units.unit_alive, strict=True)]
    radii = np.asarray(env.unit_type_radiuses)[np.asarray(units.unit_types)]
    return Scene(np.asarray(units.unit_positions), radii, colours)


def mpe(env: Any, state: Any) -> Scene:
    """Show the landmarks, then the agents over them, adversaries in another colour."""
    colours = [ORANGE if agent.startswith(ADVERSARIES) else BLUE for agent in env.agents]
    colours += [MUTED] * env.num_landmarks
    return Scene(np.asarray(state.p_pos)[::-1], np.asarray(env.rad)[::-1], colours[::-1])


def jaxnav(env: Any, state: Any) -> Scene:
    """Show walls, goals, and robots in separate colours."""
    cell, count = float(env.map_obj.cell_size), env.num_agents
    walls = cell * np.argwhere(np.asarray(state.map_data))[:, ::-1]
    colours = [FAINT] * count + [SERIES[i % len(SERIES)] for i in range(count)]
    radii = np.repeat([float(env.goal_radius), float(env.rad)], count)
    return Scene(np.concatenate([state.goal, state.pos]), radii, colours, walls, cell)


def particles(task: Any, state: Any) -> Scene:
    """Draw landmarks or obstacles, then the agents over them, coloured by role."""
    roles = [agent.rpartition("_")[0] for agent in task.agents]
    agents = [
        ROLES.get(role, BLUE) if alive else FAINT
        for role, alive in zip(roles, state.alive, strict=True)
    ]
    fixed = np.full(len(state.fixed), task.bodies.fixed_size or 0.05)
    return Scene(
        np.concatenate([state.fixed, state.position]),
        np.concatenate([fixed, task.bodies.size]),
        [MUTED] * len(fixed) + agents,
    )


def frames(
    name: str, env: Any, states: Sequence[Any], *, height: int, width: int
) -> Iterator[np.ndarray]:
    """Yield one frame per state, uint8 [height, width, 3].

    Args:
        name: smax, mpe or jaxnav of JaxMARL, or particles.
        env: JaxMARL's environment, or the task.
        states: states of the environment.
        height: height of a frame, in pixels.
        width: width of a frame, in pixels.
    """
    scene = {"smax": smax, "mpe": mpe, "jaxnav": jaxnav, "particles": particles}[name]
    scenes = [scene(env, state) for state in states]
    low, high = np.zeros(2), np.zeros(2)
    if name == "smax":
        high = np.array([env.map_width, env.map_height], float)
    elif name == "jaxnav":
        high = np.array(env.map_obj.map_size, float)
    else:
        edges = [(np.abs(x.centres) + x.radii[:, None]).max() for x in scenes]
        high += np.clip(max(edges), *REACH)
        low = -high
    for x in scenes:
        yield _frame(x, low, high, height, width)


def _frame(scene: Scene, low: np.ndarray, high: np.ndarray, height: int, width: int) -> np.ndarray:
    canvas = Canvas(height, width)
    scale = 0.92 * min(height / (high - low)[1], width / (high - low)[0])
    middle = (high + low) / 2 * (1, -1)
    canvas.view(tuple(np.array([width, height]) / 2 - scale * middle), scale)
    square = np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)], float)
    for corner in scene.walls:
        canvas.polygon(corner + scene.wall_size * square, MUTED)
    canvas.line(low + (high - low) * square, FAINT)
    for centre, radius, colour in zip(scene.centres, scene.radii, scene.colours, strict=True):
        canvas.circle(centre, radius * scale, colour)
    return canvas.frame()
