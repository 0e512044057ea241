"""Small correct and faulty Gymnasium environments, which tests name by this file."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs


class Counter(gymnasium.Env):
    """The observation is (seed, episode, step); episodes end after `length` steps, with `flags`."""

    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, length=3, flags="terminated"):
        self.length, self.flags = length, flags
        self.seed, self.episode, self.time = -1, -1, 0

    def obs(self):
        return np.array([self.seed, self.episode, self.time], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode += 1
        self.time = 0
        return self.obs(), {}

    def step(self, action):
        self.time += 1
        over = self.time == self.length
        terminated = over and self.flags in ("terminated", "both")
        truncated = over and self.flags in ("truncated", "both")
        return self.obs(), 10.0 * self.episode + self.time, terminated, truncated, {}


class OwnLimit(Counter):
    """Truncates its episodes itself, and declares the limit."""

    max_episode_steps = 3

    def __init__(self):
        super().__init__(3, "truncated")


class SaysOnly(Counter):
    """Declares a time limit, but never ends an episode."""

    max_episode_steps = 5

    def __init__(self):
        super().__init__(length=-1)


class Limited(Counter):
    """Declares a time limit of a given type, and never ends an episode."""

    def __init__(self, limit):
        super().__init__(length=-1)
        self.max_episode_steps = limit


class Large(Counter):
    """Observations are integers beyond int32, in a larger dtype."""

    def __init__(self, dtype="int64"):
        super().__init__()
        self.dtype = dtype
        self.observation_space = spaces.Box(0, np.iinfo(dtype).max, (1,), np.dtype(dtype))

    def obs(self):
        return np.array([3_000_000_000], self.dtype)


class Screen(Counter):
    """The observation is an image."""

    observation_space = spaces.Box(0, 255, (6, 6, 1), np.uint8)

    def obs(self):
        return np.full((6, 6, 1), self.time, np.uint8)


class Stack(gymnasium.wrappers.FrameStackObservation):
    """The observation is the last three observations."""

    def __init__(self, env):
        super().__init__(env, 3)


class Offset(Counter):
    """Observes a position within 10 cm in UTM metres, or a time within 10 s in Unix seconds."""

    def __init__(self, kind="utm"):
        super().__init__(length=20)
        self.kind = kind
        place = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        clock = spaces.Box(-np.inf, np.inf, (), np.int64)
        parts = {"utm": {"place": place}, "clock": {"time": clock}}
        self.observation_space = spaces.Dict(parts[kind])

    def obs(self):
        if self.kind == "clock":
            return {"time": 1_700_000_000 + self.np_random.integers(10)}
        return {"place": np.array([0.0, 5_411_932.7]) + 0.1 * self.np_random.random(2)}


class WithoutOffset(gymnasium.wrappers.TransformObservation):
    """Subtracts the offset of a position in UTM metres."""

    def __init__(self, env):
        origin = np.array([0.0, 5_411_932.0])
        super().__init__(env, lambda obs: {"place": obs["place"] - origin}, env.observation_space)


class OneBuffer(Counter):
    """Writes observations and frames into arrays that all environments of a process share."""

    obs_buffer = np.zeros(3)
    picture_buffer = np.zeros((4, 4, 3), np.uint8)

    def __init__(self, render_mode=None):
        super().__init__(length=20)
        self.render_mode = render_mode

    def obs(self):
        self.obs_buffer[:] = super().obs()
        return self.obs_buffer

    def render(self):
        self.picture_buffer[:] = self.time
        return self.picture_buffer


class Rendered(Counter):
    """Renders frames of a given form: the time in red, and in other channels twice the time."""

    def __init__(self, form="rgb", render_mode=None):
        super().__init__(length=3)
        self.form, self.render_mode = form, render_mode

    def render(self):
        pixels = np.full((4, 6, 4), [self.time, 2 * self.time, 2 * self.time, 255], np.uint8)
        if self.form == "fails":
            raise RuntimeError("no camera")
        if self.form == "sometimes" and self.time in (0, 3):
            return None
        forms = {"rgba": pixels, "grey": pixels[..., :1], "float": pixels[..., :3] / 255.0}
        return forms.get(self.form, pixels[..., :3])


class Faulty(Counter):
    """At its third step, the environment with seed `culprit` has the fault `fault`."""

    def __init__(self, fault, culprit=1):
        super().__init__(length=6)
        self.fault, self.culprit = fault, culprit
        if fault == "bytes":
            self.observation_space = spaces.Box(0, 255, (3,), np.uint8)
        if fault == "init":
            raise KeyError("no such asset")
        if fault == "slow init":
            time.sleep(60)

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        if self.seed == self.culprit and self.fault == "reset":
            raise RuntimeError("the scene is empty")
        if self.seed == self.culprit and self.fault == "reset nan":
            obs[0] = np.nan
        return obs, info

    def step(self, action):
        obs, reward, *rest = super().step(action)
        if self.seed == self.culprit and self.time == 3:
            obs, reward = self.misbehave(obs, reward)
        return obs, reward, *rest

    def misbehave(self, obs, reward):
        match self.fault:
            case "step":
                reward = 1 / 0
            case "leave":
                sys.exit(3)
            case "shape":
                obs = obs[:2]
            case "bytes":
                obs = obs - 1 / 3
            case "nan":
                obs[1] = np.nan
            case "infinite":
                reward = float("inf")
            case "huge":
                reward = 1e300
            case "hang":
                time.sleep(60)
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash":
                faulthandler._sigsegv()
        return obs, reward


class FailsLater(Counter):
    """Raises at step 500."""

    def __init__(self):
        super().__init__(length=20)
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 500:
            raise RuntimeError("the 500th step")
        return super().step(action)


class BeyondLater(FailsLater):
    """Observes a number in a Dict, and 0.5 in place of an integer at the 500th step."""

    observation_space = spaces.Dict({"side": spaces.Discrete(2)})

    def obs(self):
        return {"side": 0.5 if self.steps == 500 else 1}

    def step(self, action):
        self.steps += 1
        return Counter.step(self, action)


class NoScene(Counter):
    """Raises at the first reset."""

    def reset(self, *, seed=None, options=None):
        raise RuntimeError("the scene is empty")


class Sleepy(Counter):
    """Sleeps in each step."""

    def __init__(self):
        super().__init__(length=20)

    def step(self, action):
        time.sleep(0.005)
        return super().step(action)


class Report(gymnasium.Env):
    """Observes its process: its id, that of its parent, and whether JAX is imported."""

    observation_space = spaces.Box(0, 2**31 - 1, (3,), np.int64)
    action_space = spaces.MultiBinary(2)

    def __init__(self, hang=""):
        self.hang = hang  # the folder of the file that records this

    def obs(self):
        return np.array([os.getpid(), os.getppid(), "jax" in sys.modules])

    def reset(self, *, seed=None, options=None):
        return self.obs(), {}

    def step(self, action):
        if self.hang:
            Path(self.hang, str(os.getpid())).touch()
            time.sleep(60)
        print("chatter")
        return self.obs(), 0.0, False, False, {}


class Parent(Faulty):
    """Starts a process that ignores SIGHUP and writes its id into `folder`."""

    def __init__(self, folder, fault="", stubborn=False):
        super().__init__(fault)
        trap = "trap '' HUP TERM" if stubborn else "trap '' HUP"
        script = f"{trap}; touch $0/$$; while true; do sleep 0.5; done"
        subprocess.Popen(["sh", "-c", script, str(folder)])


class Compound(gymnasium.Env):
    """Observes its last action, with every kind of space."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "choice": spaces.Discrete(5, start=-2),
            "bits": spaces.MultiBinary((2, 2)),
            "pair": spaces.Tuple((spaces.Box(-1, 1, ()), spaces.MultiDiscrete([3, 4]))),
        }
    )
    action_space = spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[0, 1], [2, 3]])

    def __init__(self):
        self.action = np.array([[0, 1], [2, 3]])

    def obs(self):
        return {
            "image": np.full((2, 2, 3), 250 + self.action[0, 0], np.uint8),
            "choice": self.action[0, 1] - 3,
            "bits": (self.action > 3).astype(np.int8),
            "pair": (np.float64(0.5), np.array([2, 3])),
        }

    def reset(self, *, seed=None, options=None):
        return self.obs(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.action = action
        return self.obs(), float(action.sum()), False, False, {}


class Bounded(Counter):
    """The reward is the distance of a Box or Discrete action from its space."""

    def __init__(self, discrete=False):
        super().__init__(length=100)
        # float32(0.1) > 0.1.
        box = spaces.Box(np.array([-0.1, 0.0]), np.array([0.1, 3.0]), dtype=np.float64)
        self.action_space = spaces.Discrete(3, start=5) if discrete else box

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(self.action_space.contains(action)) + 10 * float(np.sum(action)), *rest


class Unsupported(Counter):
    """Text as observation or action, or integers in a Box as action."""

    def __init__(self, which):
        super().__init__()
        if which == "obs":
            self.observation_space = spaces.Text(5)
        elif which == "nothing":
            self.observation_space = spaces.Box(0, 1, (2, 0))
        elif which == "action":
            self.action_space = spaces.Text(5)
        else:
            self.action_space = spaces.Box(0, 3, (2,), np.int32)


class Doubled(gymnasium.ObservationWrapper):
    """Doubles observations."""

    def observation(self, observation):
        return observation * 2


class Times(gymnasium.RewardWrapper):
    """Multiplies rewards by a factor."""

    def __init__(self, env, factor=2):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


class RecordedTimes(Times, RecordConstructorArgs):
    """Times whose factor is part of the environment's `EnvSpec`."""

    def __init__(self, env, factor=2):
        RecordConstructorArgs.__init__(self, factor=factor)
        Times.__init__(self, env, factor)


def make_counter(config):
    """Return a Counter of the last length in a mapping, which it changes."""
    return Counter(config["lengths"].pop())


def pass_on(**options):
    return Counter(**options)


class Spaceless(gymnasium.Env):
    """An environment whose author forgot the spaces."""


def make_number():
    """Return something else than an environment."""
    return 3


class MyNormalize(gymnasium.wrappers.NormalizeReward):
    """A subclass of a normalising wrapper."""


class NormalizedCounter(gymnasium.wrappers.FlattenObservation):
    """An environment with a normalising wrapper inside another wrapper."""

    def __init__(self):
        """Apply both wrappers."""
        super().__init__(gymnasium.wrappers.NormalizeObservation(Counter()))


class NoEnvironment:
    """Not an environment."""


class Walk(gymnasium.Env):
    """A random walk pushed by actions, which ends outside of [-2, 2]."""

    observation_space = spaces.Box(-10, 10, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.place = self.place + 0.3 * action[0] + 0.2 * self.np_random.normal(size=2)
        over = bool(np.abs(self.place).max() > 2)
        return self.place.astype(np.float32), float(self.place[0]), over, False, {}


class Hybrid(Counter):
    """Has actions in products of spaces, and rewards each number of an action in its own digits.

    The observation is a Tuple: an image of its action, and the choice.
    """

    discrete = spaces.Discrete(3, start=5)
    several = spaces.MultiDiscrete([2, 3], start=[1, 1])
    observation_space = spaces.Tuple(
        (spaces.Box(-10, 10, (2,), np.float64), spaces.Discrete(3, start=5))
    )

    def __init__(self, kind="tuple"):
        super().__init__(length=4)
        box = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 4.0]), dtype=np.float64)
        self.action_space = {
            "tuple": spaces.Tuple((self.discrete, box, self.several)),
            "dict": spaces.Dict({"pick": self.discrete, "by": box, "how": self.several}),
            "nested": spaces.Dict(
                {"pick": self.discrete, "rest": spaces.Tuple((box, self.several))}
            ),
        }[kind]
        self.kind = kind
        self.last = np.zeros(2), 5

    def obs(self):
        return self.last

    def step(self, action):
        assert self.action_space.contains(action), action
        if self.kind == "tuple":
            pick, by, how = action
        elif self.kind == "dict":
            pick, by, how = action["pick"], action["by"], action["how"]
        else:
            pick, (by, how) = action["pick"], action["rest"]
        self.last = by, pick
        obs, _, *rest = super().step(action)
        return obs, float(pick + 10 * by[0] + 100 * by[1] + 1000 * how[0] + 10000 * how[1]), *rest


class Allows(Counter):
    """Has action masks in its infos, for several kinds of actions."""

    def __init__(self, kind="discrete", wrong=""):
        super().__init__(length=3)
        pair = spaces.MultiDiscrete([2, 3])
        self.kind, self.wrong = kind, wrong
        box = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = {
            "discrete": spaces.Discrete(3, start=4),
            "several": pair,
            "long": pair,
            "dict": spaces.Dict({"a": spaces.Discrete(2), "b": pair, "c": box}),
            "tuple": spaces.Tuple((box, spaces.Discrete(2))),
            "own": spaces.Discrete(3),
            "box": box,
        }[kind]
        if kind == "own":
            self.observation_space = spaces.Dict(
                {"time": Counter.observation_space, "action_mask": spaces.MultiBinary(3)}
            )
        if kind == "several":
            self.observation_space = spaces.Dict({"time": Counter.observation_space})

    def mask(self):
        t = self.time
        one = np.array([t == 0, t == 1, t == 2], np.int8)  # at the end, t = 3, no action is allowed
        pair = np.array([t != 1, t == 1], bool), np.array([1, t == 1, 0], np.int8)
        return {
            "discrete": one,
            "several": pair,
            "long": np.concatenate(pair),
            "dict": {"a": pair[0], "b": pair, "c": None},
            "tuple": (None, pair[0]),
            "own": one,
            "box": one,
        }[self.kind]

    def both(self, obs):
        if self.kind == "own":
            return {"time": obs, "action_mask": self.mask()}, {}
        if self.wrong == "missing" or (self.wrong == "later" and self.time == 2):
            return obs, {"other": 1}
        if self.wrong == "None":
            return obs, None
        mask = self.mask()[:-1] if self.wrong == "short" else self.mask()
        if self.wrong == "nan" and self.time == 2:
            obs = obs * np.nan
        return ({"time": obs} if self.kind == "several" else obs), {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        return self.both(super().reset(seed=seed)[0])

    def step(self, action):
        obs, *rest, _ = super().step(action)
        obs, info = self.both(obs)
        return obs, *rest, info


class Informed(Counter):
    """Its infos have `pace`, twice the step, and at an end `goal` = 1; `label` is a string."""

    def step(self, action):
        *result, _ = super().step(action)
        goal = {"goal": True} if result[2] else {}
        return *result, {"pace": np.float64(2 * self.time), "label": "a", "nothing": None, **goal}


def make_vector():
    """Return a vector environment, which is not supported."""
    return gymnasium.make_vec("CartPole-v1", 2)
