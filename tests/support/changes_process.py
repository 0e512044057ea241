"""Custom code that changes the state of its process; tests copy this file."""

import locale
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import warnings

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from purejaxppo.envs.base import TaskStep
from purejaxppo.spaces import Box, Discrete


def change(signals=False):
    os.chdir(tempfile.gettempdir())
    np.seterr(all="raise")
    warnings.simplefilter("error")
    root = logging.getLogger()
    root.setLevel(logging.CRITICAL)
    root.handlers[:] = [logging.NullHandler()]
    locale.setlocale(locale.LC_ALL, "C")
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - as old environments do
    sys.path[:] = [path for path in sys.path if os.path.isabs(path) and "python" in path]
    os.environ["HOME"] = "/nowhere"
    if signals and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class Env(gymnasium.Env):
    """The reward is the action plus a number that float32 rounds to 0; every 30th step diverges."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)
    max_episode_steps = 20

    def __init__(self, render_mode=None):
        change(signals=True)
        self.render_mode, self.time = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action):
        change(signals=True)
        self.time += 1
        huge = 1e300 if self.time % 30 == 0 else 0.0
        return np.array([1e-300, huge]), float(action) + 1e-300, False, False, {}

    def render(self):
        return np.zeros((64, 64, 3), np.uint8)


class Task:
    """The reward is the action."""

    observation = Box((2,))
    action = Discrete(2)
    max_episode_steps = 20

    def __init__(self):
        change()

    def reset(self, key):
        change()
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, key, state, action):
        change()
        no = jnp.zeros((), bool)
        return state, TaskStep(state, action.astype(jnp.float32), no, no)


def callback(context):
    change()
