"""A simulator that takes as long as it is told to, and does nothing."""

import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Slow(gymnasium.Env):
    """Sleeps for `milliseconds` in every step."""

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
            time.sleep(self.seconds)
        return self.obs, 1.0, False, False, {}
