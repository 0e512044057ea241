"""Drawings of classic control tasks from the simulator's state."""

from collections.abc import Callable
from typing import Any

import numpy as np

from purejaxppo.video.canvas import BLUE, FAINT, GREEN, INK, MUTED, ORANGE, RED, Canvas


def cartpole(canvas: Canvas, state: Any, params: Any) -> None:
    """Draw a cart on a rail. The marks are the limits at which the episode ends."""
    x, theta = float(state.x), float(state.theta)
    limit, pole = float(params.x_threshold), 2 * float(params.length)
    canvas.view((canvas.width / 2, 0.72 * canvas.height), canvas.width / (2.5 * limit))
    canvas.line([(-9, 0), (9, 0)], MUTED)
    for end in (-limit, limit):
        canvas.line([(end, -0.12), (end, 0.12)], RED)
    left, right = x - 0.3, x + 0.3
    canvas.polygon([(left, -0.18), (right, -0.18), (right, 0.18), (left, 0.18)], INK)
    tip = (x + pole * np.sin(theta), 0.18 + pole * np.cos(theta))
    canvas.line([(x, 0.18), tip], ORANGE, 5)
    canvas.circle((x, 0.18), 4, BLUE)


def pendulum(canvas: Canvas, state: Any, params: Any) -> None:
    """Draw a rod that turns around the centre. The bar below is the torque."""
    theta, torque = float(state.theta), float(state.last_u)
    canvas.view((canvas.width / 2, 0.47 * canvas.height), 0.36 * canvas.height)
    turn = np.linspace(0, 2 * np.pi, 73)
    canvas.line(np.stack([np.cos(turn), np.sin(turn)], 1), FAINT)
    canvas.line([(0, 0), (-np.sin(theta), np.cos(theta))], ORANGE, 8)
    canvas.circle((0, 0), 5, INK)
    reach = 0.8 * np.clip(torque / float(params.max_torque), -1, 1)
    canvas.line([(-0.8, -1.25), (0.8, -1.25)], FAINT, 4)
    canvas.line([(0, -1.25), (-reach, -1.25)], BLUE, 4)


def acrobot(canvas: Canvas, state: Any, params: Any) -> None:
    """Draw two links that hang from the centre. The line is the height to reach."""
    first, second = float(params.link_length_1), float(params.link_length_2)
    a, b = float(state.joint_angle1), float(state.joint_angle1) + float(state.joint_angle2)
    canvas.view((canvas.width / 2, 0.52 * canvas.height), 0.21 * canvas.height)
    canvas.line([(-9, first), (9, first)], GREEN)
    elbow = (first * np.sin(a), -first * np.cos(a))
    tip = (elbow[0] + second * np.sin(b), elbow[1] - second * np.cos(b))
    canvas.line([(0, 0), elbow], BLUE, 7)
    canvas.line([elbow, tip], ORANGE, 7)
    for joint in ((0, 0), elbow):
        canvas.circle(joint, 5, INK)


def mountain_car(canvas: Canvas, state: Any, params: Any) -> None:
    """Draw a car in a valley and the flag to reach."""
    low, high = float(params.min_position), float(params.max_position)
    scale = min(canvas.width / (1.08 * (high - low)), 0.65 * canvas.height)
    canvas.view((canvas.width / 2 - scale * (low + high) / 2, 0.9 * canvas.height), scale)
    x = np.linspace(low - 1, high + 1, 400)
    hill = np.stack([x, _height(x)], 1)
    canvas.polygon([*hill, (high + 1, -9), (low - 1, -9)], FAINT)
    canvas.line(hill, MUTED)
    goal = float(params.goal_position)
    foot, top = _height(goal), _height(goal) + 0.2
    canvas.line([(goal, foot), (goal, top)], INK)
    canvas.polygon([(goal, top), (goal + 0.09, top - 0.035), (goal, top - 0.07)], GREEN)
    position = float(state.position)
    slope = np.arctan(3 * 0.45 * np.cos(3 * position))
    along, up = np.array([np.cos(slope), np.sin(slope)]), np.array([-np.sin(slope), np.cos(slope)])
    base = np.array([position, _height(position)])
    corners = [(-0.07, 0.03), (0.07, 0.03), (0.05, 0.09), (-0.05, 0.09)]
    canvas.polygon([base + a * along + b * up for a, b in corners], ORANGE)
    for wheel in (-0.042, 0.042):
        canvas.circle(base + wheel * along + 0.022 * up, 0.022 * scale, INK)


def _height(x):
    return 0.45 * np.sin(3 * x) + 0.55


DRAWINGS: dict[str, Callable[[Canvas, Any, Any], None]] = {
    "CartPole-v1": cartpole,
    "Pendulum-v1": pendulum,
    "Acrobot-v1": acrobot,
    "MountainCar-v0": mountain_car,
    "MountainCarContinuous-v0": mountain_car,
}


def frames(name: str, states, params, *, height: int, width: int):
    """Yield one frame per state of a gymnax task, whose `name` is in `DRAWINGS`."""
    for state in states:
        canvas = Canvas(height, width)
        DRAWINGS[name](canvas, state, params)
        yield canvas.frame()
