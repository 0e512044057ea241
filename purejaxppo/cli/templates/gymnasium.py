"""A custom Gymnasium environment: steer a cart in a corridor to a goal.

env.num_envs copies of the environment step in worker processes.
"""

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """A cart moves along a corridor to a goal. The reward is 1 minus the distance to the goal.

    The flag --env.options.length 3 sets the argument `length`.
    """

    max_episode_steps = 100  # the library truncates episodes after so many steps

    def __init__(self, length=2.0):
        """Define the spaces; the corridor ends at -length and length."""
        self.length = length
        self.observation_space = spaces.Dict(
            {
                "cart": spaces.Box(-10.0, 10.0, (2,), np.float32),  # position, velocity
                "goal": spaces.Box(-1.0, 1.0, (1,), np.float32),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)  # a push

    def reset(self, *, seed=None, options=None):
        """Return the first observation and an info."""
        super().reset(seed=seed)  # creates self.np_random; use it for all random numbers
        self.position, self.velocity = 0.0, 0.0
        self.goal = self.np_random.uniform(-1.0, 1.0)
        return self.observe(), {}

    def step(self, action):
        """Return the next observation, the reward, terminated, truncated and an info."""
        self.velocity = 0.9 * self.velocity + 0.1 * float(action[0])
        self.position += self.velocity
        reward = 1.0 - abs(self.position - self.goal)
        # terminated: the episode ended, and no reward follows. The time limit is not a termination.
        terminated = abs(self.position) > self.length
        return self.observe(), reward, terminated, False, {}

    def observe(self):
        """Return the observation, in `observation_space`."""
        return {
            "cart": np.array([self.position, self.velocity], np.float32),
            "goal": np.array([self.goal], np.float32),
        }
