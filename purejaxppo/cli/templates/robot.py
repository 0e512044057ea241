"""A custom robot in MuJoCo MJX: a balancing robot on two wheels follows a commanded velocity.

balancer.xml is its model, and chassis.obj a mesh. Both are next to this file. Runs copy them.
"""

import copy
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
from mujoco import mjx

from purejaxppo import Box, TaskStep

MODEL = Path(__file__).parent / "balancer.xml"
SUBSTEPS = 2
"""Steps of the simulator of 0.01 s in a control step."""


class Balancer:
    """The reward is at most 1, at the commanded velocity. The episode ends when the robot falls.

    The flag --env.options.fastest 2 sets the argument `fastest`.
    """

    observation = Box((4,))  # tilt, its velocity, velocity, command
    action = Box((1,), -1.0, 1.0)  # motor command; `step` gets it within these bounds
    max_episode_steps = 250  # time limit: truncated, not terminated
    cheap_reset = False  # a reset simulates
    frame_rate = 50.0  # of videos: control steps per second

    def __init__(self, fastest=1.0):
        """Load the model; commands are velocities up to `fastest`."""
        self.fastest = fastest
        self.parameters = {"mass": 1.0}  # what --env.randomize can vary; see `adjusted`
        self.mj_model = mujoco.MjModel.from_xml_path(str(MODEL))  # videos show this model
        self.model = mjx.put_model(self.mj_model)

    def reset(self, key):
        """Return the first state, any pytree of arrays, and its observation."""
        tilt_key, command_key = jax.random.split(key)
        tilt = jax.random.uniform(tilt_key, minval=-0.1, maxval=0.1)
        command = jax.random.uniform(command_key, minval=-self.fastest, maxval=self.fastest)
        data = mjx.make_data(self.model).replace(qpos=jnp.stack([0.0, tilt]))
        state = {"data": mjx.forward(self.model, data), "command": command}
        return state, self.observe(state)

    def observe(self, state):
        """Return what the sensors of the robot measure."""
        roll, tilt = state["data"].qvel
        return jnp.stack([state["data"].qpos[1], tilt, roll, state["command"]])

    def step(self, key, state, action):
        """Return the next state and a TaskStep."""
        del key  # use it for random transitions

        def substep(data, _):
            return mjx.step(self.model, data.replace(ctrl=action)), None

        data, _ = jax.lax.scan(substep, state["data"], length=SUBSTEPS)
        state = state | {"data": data}
        obs = self.observe(state)
        reward = 0.5 + 0.5 * jnp.exp(-4.0 * jnp.square(obs[2] - obs[3])) - 0.05 * action[0] ** 2
        # terminated: the episode ended, and no reward follows. Do not report a time limit here.
        terminated = jnp.abs(obs[0]) > 0.8
        return state, TaskStep(obs, reward, terminated, truncated=jnp.array(False))

    def adjusted(self, values):
        """Return the robot with its mass multiplied by a factor, sampled for each episode."""
        robot, mass = copy.copy(self), values["mass"]
        robot.model = self.model.replace(
            body_mass=mass * self.model.body_mass, body_inertia=mass * self.model.body_inertia
        )
        return robot
