"""A simulator that takes as long as it is told to, on one of a few cores, and does nothing."""

import threading
import time

import gymnasium
import numpy as np
from gymnasium import spaces

CORES = threading.Semaphore(8)
"""A sleeping simulator holds one: so that however many threads there are, only 8 step at a time."""


class Slow(gymnasium.Env):
    """Sleeps for `milliseconds` in every step; for workers that are threads."""

    observation_space = spaces.Box(-1.0, 1.0, (17,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (6,), np.float32)

    def __init__(self, milliseconds=1.0):
        """Nothing to set up."""
        self.seconds = milliseconds / 1000
        self.obs = np.zeros(17, np.float32)

    def reset(self, *, seed=None, options=None):
        """Always the same start."""
        super().reset(seed=seed)
        return self.obs, {}

    def step(self, action):
        """Always the same answer, late."""
        if self.seconds:
            with CORES:
                time.sleep(self.seconds)
        return self.obs, 1.0, False, False, {}
