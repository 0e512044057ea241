"""The contract of all registered environments, checked on recorded random rollouts."""

import functools
import importlib.util
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import rulesets
from support.memory import drop_large_programs
from support.stepping import KEY, begin

from purejaxppo import spaces
from purejaxppo.agents.advantages import gae
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import families, registry
from purejaxppo.envs.base import Env
from purejaxppo.envs.vectorize import select
from purejaxppo.envs.worlds import MultiAgentState
from purejaxppo.rollout import collect, init_rollout
from purejaxppo.types import PolicyStep

# Brax asks MJX for fields in the old way.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing `.*` directly:DeprecationWarning")

FULL, SLOW = pytest.mark.full, pytest.mark.slow
LENGTH, NUM_ENVS, LIMIT = 40, 3, 12

GYMNAX = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "MemoryChain-bsuite",
    "UmbrellaChain-bsuite",
    "DiscountingChain-bsuite",
    "SimpleBandit-bsuite",
    "FourRooms-misc",
    "MetaMaze-misc",
    "PointRobot-misc",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "Reacher-misc",
    "Swimmer-misc",
    "Pong-misc",
    "FrozenLake-misc",
)
BRAX = (
    "ant",
    "fast",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_double_pendulum",
    "inverted_pendulum",
    "pusher",
    "reacher",
    "walker2d",
)
JUMANJI = (
    "BinPack-v2",
    "CVRP-v1",
    "Cleaner-v0",
    "Connector-v3",
    "FlatPack-v0",
    "Game2048-v1",
    "GraphColoring-v1",
    "JobShop-v0",
    "Knapsack-v1",
    "LevelBasedForaging-v0",
    "MMST-v0",
    "Maze-v0",
    "Minesweeper-v0",
    "MultiCVRP-v0",
    "PacMan-v1",
    "RobotWarehouse-v0",
    "RubiksCube-partly-scrambled-v0",
    "RubiksCube-v0",
    "SearchAndRescue-v0",
    "SlidingTilePuzzle-v0",
    "Snake-v1",
    "Sudoku-v0",
    "Sudoku-very-easy-v0",
    "TSP-v1",
    "Tetris-v0",
)
MINATAR = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
GAMES_OF_TWO = (
    "animal_shogi",
    "backgammon",
    "chess",
    "connect_four",
    "gardner_chess",
    "go_19x19",
    "go_9x9",
    "hex",
    "kuhn_poker",
    "leduc_holdem",
    "othello",
    "shogi",
    "tic_tac_toe",
)
"""Played against a random player, except Kuhn poker with two agents."""
PGX = (*(f"minatar-{name}" for name in MINATAR), *GAMES_OF_TWO, "2048", "sparrow_mahjong")
PLAYGROUND = (
    "AcrobotSwingup",
    "BallInCup",
    "CartpoleBalance",
    "CartpoleSwingup",
    "PendulumSwingup",
    "PointMass",
    "ReacherEasy",
)
"""Tasks of the DeepMind control suite that compile fast."""
ENVPOOL = (
    "CartPole-v1",
    "Pendulum-v1",
    "Hopper-v5",
    "Ant-v4",
    "WalkerWalk-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "Pong-v5",
    "Breakout-v5",
    "MiniGrid-DoorKey-5x5-v0",
    "FrozenLake-v1",
    "FetchReach-v4",
)
CRAFTAX = tuple(
    f"{game}-{kind}-v1"
    for game in ("Craftax-Classic", "Craftax")
    for kind in ("Symbolic", "Pixels")
)
MINIGRID = (
    "MiniGrid-BlockedUnlockPickUp",
    *(f"MiniGrid-DoorKey-{size}" for size in ("5x5", "6x6", "8x8", "16x16")),
    *(f"MiniGrid-Empty-{size}" for size in ("5x5", "6x6", "8x8", "16x16")),
    *(f"MiniGrid-EmptyRandom-{size}" for size in ("5x5", "6x6", "8x8", "16x16")),
    "MiniGrid-FourRooms",
    "MiniGrid-LockedRoom",
    *(f"MiniGrid-Memory{size}" for size in ("S8", "S16", "S32", "S64", "S128")),
    "MiniGrid-Playground",
    "MiniGrid-Unlock",
    "MiniGrid-UnlockPickUp",
    *(f"XLand-MiniGrid-R1-{n}x{n}" for n in (9, 11, 13, 15, 17)),
    *(f"XLand-MiniGrid-R2-{n}x{n}" for n in (9, 11, 13, 15, 17)),
    *(f"XLand-MiniGrid-R4-{n}x{n}" for n in (9, 11, 13, 15, 17)),
    *(f"XLand-MiniGrid-R6-{n}x{n}" for n in (13, 17, 19)),
    *(f"XLand-MiniGrid-R9-{n}x{n}" for n in (16, 19, 25)),
)
JAXMARL = (
    "MPE_simple_v3",
    "MPE_simple_adversary_v3",
    "MPE_simple_crypto_v3",
    *(f"MPE_simple_facmac_{kind}v1" for kind in ("", "3a_", "6a_", "9a_")),
    "MPE_simple_push_v3",
    "MPE_simple_reference_v3",
    "MPE_simple_speaker_listener_v4",
    "MPE_simple_spread_v3",
    "MPE_simple_tag_v3",
    "MPE_simple_world_comm_v3",
    *("coin_game", "hanabi", "jaxnav", "overcooked", "overcooked_v2", "switch_riddle"),
    *(f"SMAX-{name}" for name in ("3m", "8m", "25m", "2s3z", "3s5z", "3s_vs_5z", "5m_vs_6m")),
    *(f"SMAX-{name}" for name in ("6h_vs_8z", "10m_vs_11m", "27m_vs_30m", "3s5z_vs_3s6z")),
    *(f"SMAX-smacv2_{count}_units" for count in (5, 10, 20)),
)
PETTINGZOO = ("mpe2.simple_spread_v3", "mpe2.simple_tag_v3")
GYMNASIUM = ("CartPole-v1", "Pendulum-v1", "Hopper-v5", "FrozenLake-v1")
ONE_OF_EACH_KIND = {
    "brax/inverted_pendulum": "a robot that falls",
    "dummy/choices": "rewards that name the action",
    "dummy/constant": "time limits only",
    "dummy/pixels": "bytes",
    "dummy/vector": "a Box of actions",
    "envpool/Breakout-v5": "bytes, a game that is lost",
    "envpool/CartPole-v1": "a choice of actions",
    "envpool/Hopper-v5": "float64 in C++, a Box of actions",
    "gymnasium/CartPole-v1": "processes",
    "gymnasium/FrozenLake-v1": "an observation that is a number",
    "gymnax/CartPole-v1": "a choice of actions, both ends",
    "gymnax/DeepSea-bsuite": "reports both ends at once",
    "gymnax/FrozenLake-misc": "an observation that is a number",
    "gymnax/Pendulum-v1": "a Box of actions, time limits only",
    "jax/support.own_code:Walk": "a custom task",
    "jaxmarl/MPE_simple_speaker_listener_v4": "agents of two kinds, time limits only",
    "jaxmarl/SMAX-3m": "agents with masks",
    "jaxmarl/overcooked": "agents that observe images",
    "oscillator/bvdp": "windows",
    "jumanji/Connector-v3": "choices with a mask each, rewards to be summed",
    "jumanji/Snake-v1": "a board, a mask",
    "particles/tag": "agents that leave",
    "pettingzoo/mpe2.simple_tag_v3": "agents on the host",
    "pgx/minatar-breakout": "a board, a ball that is lost",
    "pgx/kuhn_poker": "agents in turns",
    "pgx/tic_tac_toe": "an opponent",
    "playground/CartpoleBalance": "MJX",
    "xminigrid/MiniGrid-DoorKey-5x5": "hundreds of numbers that are names",
}
"""Tasks that `make test` records, with reasons. `make test-all` records all except `ALIKE`."""
BODIES = ("ant", "halfcheetah", "humanoid", "humanoidstandup", "inverted_double_pendulum")
ALIKE_BY_FAMILY = {
    "brax": (*BODIES, "pusher", "walker2d"),
    "craftax": ("Craftax-Classic-Pixels-v1", "Craftax-Pixels-v1"),
    "jaxmarl": (
        *(f"MPE_simple_facmac_{count}a_v1" for count in (3, 6, 9)),
        *(f"SMAX-{name}" for name in ("8m", "25m", "3s5z", "3s_vs_5z", "5m_vs_6m", "6h_vs_8z")),
        *(f"SMAX-{name}" for name in ("10m_vs_11m", "27m_vs_30m", "3s5z_vs_3s6z")),
        *(f"SMAX-smacv2_{count}_units" for count in (10, 20)),
    ),
    "jumanji": ("MMST-v0", "RubiksCube-partly-scrambled-v0", "Sudoku-very-easy-v0"),
    "oscillator": ("hindmarsh_rose",),
    "pgx": ("go_19x19", "shogi", "sparrow_mahjong"),
    "xminigrid": (
        *(f"MiniGrid-DoorKey-{size}" for size in ("6x6", "8x8", "16x16")),
        *(f"MiniGrid-Empty-{size}" for size in ("5x5", "6x6", "8x8")),
        *(f"MiniGrid-EmptyRandom-{size}" for size in ("5x5", "6x6", "8x8")),
        *(f"MiniGrid-Memory{size}" for size in ("S8", "S16", "S32", "S64")),
        *(f"XLand-MiniGrid-R1-{n}x{n}" for n in (11, 13, 15, 17)),
        *(f"XLand-MiniGrid-R2-{n}x{n}" for n in (9, 11, 13, 15, 17)),
        *(f"XLand-MiniGrid-R4-{n}x{n}" for n in (9, 11, 13, 15, 17)),
        *(f"XLand-MiniGrid-R6-{n}x{n}" for n in (13, 17, 19)),
        *(f"XLand-MiniGrid-R9-{n}x{n}" for n in (16, 19)),
    ),
}
ALIKE = {f"{family}/{name}" for family, names in ALIKE_BY_FAMILY.items() for name in names}
"""Expensive tasks whose families have recorded ones; `-m slow` records them."""
EXPENSIVE = {"craftax"}
"""Families that `make test` does not record, because they compile slowly."""
GAMES = {"godot", "unity"}
"""Families of exported games, which tests/envs/engines covers."""

ALL = [
    *(("dummy/" + name, "") for name in ("vector", "pixels", "constant", "choices")),
    *(("gymnax/" + name, "") for name in GYMNAX),
    *(("brax/" + name, "") for name in BRAX),
    ("brax/hopper", "positional"),
    *(("brax/inverted_pendulum", backend) for backend in ("generalized", "mjx")),
    *(("playground/" + name, "") for name in PLAYGROUND),
    *(("envpool/" + name, "") for name in ENVPOOL),
    *(("gymnasium/" + name, "") for name in GYMNASIUM),
    ("jax/support.own_code:Walk", ""),
    *(("jaxmarl/" + name, "") for name in JAXMARL),
    *(("oscillator/" + name, "") for name in ("bvdp", "hindmarsh_rose", "kuramoto")),
    *(("jumanji/" + name, "") for name in JUMANJI),
    *(("particles/" + name, "") for name in ("spread", "tag")),
    *(("pgx/" + name, "") for name in PGX),
    *(("pettingzoo/" + name, "") for name in PETTINGZOO),
    *(("craftax/" + name, "") for name in CRAFTAX),
    *(("xminigrid/" + name, "") for name in MINIGRID),
]
OPTIONS = {
    **{f"pgx/{name}": {"opponent": "random"} for name in GAMES_OF_TWO if name != "kuhn_poker"},
    "particles/tag": {"num_hunters": 1, "num_prey": 2},
    "pettingzoo/mpe2.simple_tag_v3": {"num_adversaries": 2, "num_good": 1},
}
ONE_START = {
    "envpool/FrozenLake-v1",
    "gymnasium/FrozenLake-v1",
    "brax/fast",
    "gymnax/Asterix-MinAtar",
    "gymnax/BernoulliBandit-misc",
    "gymnax/DeepSea-bsuite",
    "gymnax/DiscountingChain-bsuite",
    "gymnax/FourRooms-misc",
    "gymnax/FrozenLake-misc",
    "gymnax/GaussianBandit-misc",
    "gymnax/MetaMaze-misc",
    "gymnax/Pong-misc",
    "gymnax/Seaquest-MinAtar",
    "gymnax/SimpleBandit-bsuite",
    "gymnax/SpaceInvaders-MinAtar",
    *(f"xminigrid/MiniGrid-Empty-{size}" for size in ("5x5", "6x6", "8x8", "16x16")),
    "jaxmarl/overcooked_v2",
    "jumanji/Minesweeper-v0",
    "jumanji/PacMan-v1",
    "pgx/minatar-asterix",
    "pgx/minatar-seaquest",
    "pgx/minatar-space_invaders",
    "playground/BallInCup",
}
"""Tasks whose first observation is always the same."""
MOSTLY_ONE_START = {f"xminigrid/MiniGrid-Memory{size}" for size in ("S16", "S32", "S64", "S128")}
"""Corridors in which most first observations show the middle."""


def parameter(name, backend):
    task = f"{name}-{backend}" if backend else name
    # Several workers share this file, and one of them makes each recording.
    group = pytest.mark.xdist_group(f"contract-{task}")
    if name in ONE_OF_EACH_KIND and not backend:
        return pytest.param((name, backend), id=task, marks=group)
    return pytest.param((name, backend), id=task, marks=[group, SLOW if name in ALIKE else FULL])


def allowed_action(space, key, obs, num_envs):
    """Return a random action that the mask of each row allows."""
    if isinstance(obs, dict) and isinstance(space, spaces.Discrete) and spaces.MASK in obs:
        return jax.random.categorical(key, jnp.log(obs[spaces.MASK].astype(jnp.float32)))
    return random_action(space, key, num_envs)


def random_action(space, key, num_envs):
    if isinstance(space, spaces.Discrete):
        return jax.random.randint(key, (num_envs,), 0, space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return jax.random.randint(key, (num_envs, len(space.nvec)), 0, jnp.array(space.nvec))
    return 1.5 * jax.random.uniform(key, (num_envs, *space.shape), minval=-1.0)


def another_action(space, action):
    if isinstance(space, spaces.Box):
        return 0.3 - action
    return (action + 1) % jnp.array(size(space))


def size(space):
    return space.n if isinstance(space, spaces.Discrete) else space.nvec


class Disturbed(Env):
    """An environment that gets other actions on reset rows if `disturb`.

    `kinds` are the types of the first step's arguments and results.
    """

    def __init__(self, env, disturb):
        self.env, self.disturb, self.spec = env, disturb, env.spec
        self.kinds = None

    def step(self, key, state, action):
        other = another_action(self.spec.action, action)
        given = select(ignored(state) & self.disturb, other, action)
        after, out = self.env.step(key, state, given)
        self.kinds = self.kinds or [kinds(x) for x in (state, after, out)]
        return after, out


def kinds(tree):
    types = map(jax.typeof, jax.tree.leaves(tree))
    return [(x.shape, x.dtype, x.weak_type) for x in types]


def ignored(state):
    """Return the rows whose actions the next step ignores: bool [N]."""
    if isinstance(state, MultiAgentState):
        return (state.worlds.done[:, None] | ~state.alive).ravel()
    return state.done


def valid_after(done, num_agents):
    """Return the valid rows, given where agents are done. The first row is valid.

    A done agent stays invalid until all agents of its environment are done, and one row more.
    """
    worlds = done.reshape(len(done), -1, num_agents)
    valid, alive = np.zeros(worlds.shape, bool), np.ones(worlds.shape[1:], bool)
    for t in range(len(worlds)):
        valid[t] = alive
        alive = alive & ~worlds[t]
        resetting = ~valid[t].any(axis=1) if t else np.zeros(len(alive), bool)
        alive[resetting] = True
    return valid.reshape(done.shape)


def make(name, backend="", limit=LIMIT):
    family = name.partition("/")[0]
    if importlib.util.find_spec(families.load(family).requires) is None:
        pytest.skip(f"needs the extra {family}")
    config = EnvConfig(
        name=name,
        num_envs=NUM_ENVS,
        backend=backend,
        max_episode_steps=limit,
        options=OPTIONS.get(name, {}),
    )
    return registry.make(config, whole_worlds(config))


def whole_worlds(config):
    """Return a number of rows: 3 if these are whole environments, otherwise two environments."""
    if not config.name.startswith("jaxmarl/") and config.name != "pgx/kuhn_poker":
        return NUM_ENVS
    num_agents = len(registry.make_task(config).agents)
    return NUM_ENVS if NUM_ENVS % num_agents == 0 else 2 * num_agents


@pytest.fixture(scope="module", autouse=True)
def xland_rulesets(tmp_path_factory):
    """Write the file of rulesets that XLand's tasks need."""
    if importlib.util.find_spec("xminigrid"):
        path = rulesets.write(tmp_path_factory.mktemp("xland"))
        OPTIONS.update({f"xminigrid/{n}": {"benchmark": path} for n in MINIGRID if "XLand" in n})


class Recording:
    """A random rollout: arrays [T, N], `obs` and `start` with one more row."""

    def __init__(self, name, backend="", limit=LIMIT):
        self.env = make(name, backend, limit)
        self.name, self.spec = name, self.env.spec

        def act(key, carry, obs, start):
            action = allowed_action(self.spec.action, key, obs, self.spec.num_envs)
            return PolicyStep(carry, action, jnp.zeros(self.spec.num_envs), action)

        def run(key, disturb):
            env_key, act_key = jax.random.split(key)
            state = init_rollout(self.env, lambda batch: (), env_key)
            state = state.replace(env=begin(self.env, state.env))
            env = Disturbed(self.env, disturb)
            rollout = collect(env, act, state, act_key, LENGTH)
            self.kinds = [kinds(state.env), kinds(state.obs), *env.kinds]
            return rollout.end.obs, rollout.transitions, rollout.episodes

        if registry.on_host(EnvConfig(name=name)):
            twins = self.each_in_its_own(run, lambda: make(name, backend, limit))
        else:
            program = jax.jit(run)  # not vmapped, because that is slower to trace and compile
            twins = [program(jax.random.key(3), jnp.array(other)) for other in (False, True)]
        (end, self.rows, self.episodes), self.twin = jax.device_get(twins)
        self.obs = jax.tree.map(lambda x, last: np.concatenate([x, last[None]]), self.rows.obs, end)
        self.done = self.rows.terminated | self.rows.truncated
        self.length = running_length(self.rows.valid)

    def each_in_its_own(self, run, make_env):
        """Run each twin in its own simulator with the same seed."""
        twins = []
        for disturb in (False, True):
            self.env = make_env()
            # A new function: jit would return the program of the previous pool.
            program = jax.jit(functools.partial(run))
            twins.append(jax.device_get(program(jax.random.key(3), jnp.array(disturb))))
            self.env.close()
        return twins

    def starts(self):
        """Yield (environment, flattened first observation) for every episode."""
        for t, n in zip(*np.nonzero(self.rows.start), strict=True):
            leaves = jax.tree.leaves(jax.tree.map(lambda x, t=t, n=n: x[t, n].ravel(), self.obs))
            yield n, np.concatenate(leaves)


def running_length(valid):
    """Count the steps of the running episode, including this one; 0 on reset rows."""
    length, count = np.zeros(valid.shape, int), np.zeros(valid.shape[1], int)
    for t in range(len(valid)):
        count = np.where(valid[t], count + 1, 0)
        length[t] = count
    return length


@functools.lru_cache(maxsize=2)
def record(name, backend=""):
    return Recording(name, backend)


@pytest.fixture(scope="module", params=[parameter(*task) for task in ALL])
def recording(request):
    yield record(*request.param)
    drop_large_programs()  # the programs of all these simulators take gigabytes


def leaves_with_spaces(obs, space):
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces:
            yield from leaves_with_spaces(obs[name], part)
    else:
        yield obs, space


def test_observations_match_their_space(recording):
    for x, space in leaves_with_spaces(recording.obs, recording.spec.observation):
        shape, dtype = {
            spaces.Discrete: lambda s: ((), "int32"),
            spaces.MultiDiscrete: lambda s: ((len(s.nvec),), "int32"),
            spaces.Box: lambda s: (s.shape, s.dtype),
        }[type(space)](space)
        assert x.shape == (LENGTH + 1, recording.spec.num_envs, *shape)
        assert x.dtype == dtype
        if np.issubdtype(x.dtype, np.floating):
            assert np.all(np.isfinite(x))
        if not isinstance(space, spaces.Box):
            assert np.all((x >= 0) & (x < np.array(size(space))))


def test_windows_slide_by_the_declared_number_of_values(recording):
    # This lets a rollout store the series instead of the windows.
    for x, space in leaves_with_spaces(recording.obs, recording.spec.observation):
        slide = getattr(space, "slide", 0)
        if slide:
            assert recording.spec.known_starts
            on = recording.rows.valid
            np.testing.assert_array_equal(x[1:, :, :-slide][on], x[:-1, :, slide:][on])
            # 18 is the first multiple of 3 from 16 on. Each environment takes 18 starts in turn.
            starts = x[1:][~on].reshape(-1, *space.shape)
            assert 1 < len(np.unique(starts, axis=0)) <= 18
            for n in range(NUM_ENVS):
                firsts = x[1:, n][~on[:, n]][:18]
                assert len(np.unique(firsts, axis=0)) == len(firsts)


def test_rewards_are_finite_float32_and_flags_are_bool(recording):
    rows, shape = recording.rows, (LENGTH, recording.spec.num_envs)
    assert rows.reward.dtype == np.float32 and rows.reward.shape == shape
    assert np.all(np.isfinite(rows.reward))
    for flag in (rows.terminated, rows.truncated, rows.valid):
        assert flag.dtype == bool and flag.shape == shape
    assert recording.episodes.diverged == 0


def test_terminated_and_truncated_exclude_each_other_and_are_on_valid_rows(recording):
    rows = recording.rows
    assert recording.done.any()
    assert not np.any(rows.terminated & rows.truncated)
    assert not np.any(recording.done & ~rows.valid)


def test_each_end_is_followed_by_exactly_one_reset_row_with_zero_reward(recording):
    rows = recording.rows
    expected = valid_after(recording.done, recording.spec.num_agents)
    np.testing.assert_array_equal(rows.valid, expected)
    if recording.spec.num_agents == 1:
        np.testing.assert_array_equal(rows.valid[1:], ~recording.done[:-1])
    assert rows.valid[0].all()
    assert np.all(rows.reward[~rows.valid] == 0)
    np.testing.assert_array_equal(rows.start[1:], ~rows.valid[:-1])
    assert rows.start[0].all()


def test_the_action_of_a_reset_row_is_ignored(recording):
    # The twin rollout gets other actions on its reset rows only.
    rows, twin = recording.rows, recording.twin[1]
    assert not rows.valid.all()
    jax.tree.map(np.testing.assert_array_equal, rows, twin)
    jax.tree.map(
        lambda x, last: np.testing.assert_array_equal(x[-1], last), recording.obs, recording.twin[0]
    )


def test_the_time_limit_truncates_at_exactly_max_episode_steps(recording):
    assert recording.spec.max_episode_steps == LIMIT
    at_limit = recording.length == LIMIT
    np.testing.assert_array_equal(recording.rows.truncated, at_limit & ~recording.rows.terminated)
    assert recording.length.max() <= LIMIT


def test_starts_differ_between_episodes_and_environments(recording):
    starts = list(recording.starts())
    different = len(np.unique([obs for _, obs in starts], axis=0))
    if recording.name in ONE_START:
        assert different <= recording.spec.num_agents  # each agent has its own view
    elif recording.name.startswith("brax/") or recording.name.startswith("playground/"):
        # Fresh starts are drawn once per environment and rollout, in addition to the first.
        assert different >= 2 * NUM_ENVS
    elif recording.name in MOSTLY_ONE_START:
        many = registry.make(EnvConfig(recording.name, num_envs=256), 256)

        def seen(key):
            state, obs = many.reset(key)
            return obs, many.starts(begin(many, state)).obs

        first, later = (
            np.concatenate([np.asarray(x).reshape(256, -1) for x in jax.tree.leaves(obs)], axis=1)
            for obs in jax.jit(seen)(jax.random.key(0))
        )
        assert len(np.unique(first, axis=0)) > 1 and (first != later).any()
    else:
        assert different > 1


def test_episode_sums_equal_the_sums_of_the_rows(recording):
    rows, done = recording.rows, recording.done
    returns, running = 0.0, np.zeros(recording.spec.num_envs)
    for t in range(LENGTH):
        running += rows.reward[t]
        returns += running[done[t]].sum()
        running[done[t]] = 0.0
    assert recording.episodes.count == done.sum()
    assert recording.episodes.length_sum == recording.length[done].sum()
    np.testing.assert_allclose(recording.episodes.return_sum, returns, rtol=1e-4, atol=1e-4)


def test_every_episode_has_all_metrics_that_the_environment_declares(recording):
    sums, names = recording.episodes.metrics, recording.spec.metrics
    assert (sums is None) == (not names)
    if sums is not None:
        assert sums.count.tolist() == [recording.done.sum()] * len(names)
        assert sums.total.dtype == np.float32 and np.isfinite(sums.total).all()


def test_step_returns_the_types_that_it_takes_including_weak_types(recording):
    reset, obs, before, after, step = recording.kinds
    assert reset == before == after
    assert step[: len(obs)] == obs
    assert not any(weak for *_, weak in (*after, *step))


def test_a_correct_constant_value_gives_zero_advantage_except_before_terminations(recording):
    rows, num_rows = recording.rows, recording.spec.num_envs
    gamma, value = 0.75, np.full((LENGTH, num_rows), 4.0, np.float32)  # 4 = 1 / (1 - gamma)
    reward = np.where(rows.valid, np.float32(1), rows.reward)
    flags = (rows.terminated, recording.done, rows.valid)
    arrays = map(jnp.asarray, (reward, value, value, *flags))
    advantage = np.asarray(gae(*arrays, gamma=gamma, gae_lambda=1.0)[0])
    # k steps before a termination the advantage is gamma^k (1 - V); everywhere else exactly 0.
    expected = np.zeros((LENGTH + 1, num_rows), np.float32)
    for t in reversed(range(LENGTH)):
        later = np.where(recording.done[t], 0, np.float32(gamma) * expected[t + 1])
        expected[t] = np.where(rows.terminated[t], -3.0, later) * rows.valid[t]
    np.testing.assert_allclose(advantage, expected[:-1], rtol=1e-5)
    assert np.all(advantage[expected[:-1] == 0] == 0)
    assert np.all(advantage[rows.truncated] == 0) and np.all(advantage[~rows.valid] == 0)


def test_the_lists_of_recorded_tasks_are_complete():
    lists = {
        "brax": BRAX,
        "craftax": CRAFTAX,
        "gymnax": GYMNAX,
        "jaxmarl": JAXMARL,
        "jumanji": JUMANJI,
        "pgx": PGX,
        "xminigrid": MINIGRID,
    }
    for family, names in lists.items():
        if importlib.util.find_spec(family):
            assert set(registry.task_names(family)) == {f"{family}/{name}" for name in names}
    assert set(registry.task_names("dummy")) <= {name for name, _ in ALL}
    assert {(name, "") for name in ALIKE} < set(ALL)
    recorded = {name.partition("/")[0] for name, _ in ALL}
    assert recorded == set(families.ADAPTERS) - GAMES
    assert recorded - EXPENSIVE == {name.partition("/")[0] for name in ONE_OF_EACH_KIND}


def cartpole_step(state, action):
    """Barto, Sutton & Anderson 1983, as in Gymnasium's CartPole-v1, in float64."""
    x, x_dot, theta, theta_dot = np.asarray(state, np.float64)
    force = 10.0 if action == 1 else -10.0
    temp = (force + 0.05 * theta_dot**2 * np.sin(theta)) / 1.1
    theta_acc = (9.8 * np.sin(theta) - np.cos(theta) * temp) / (
        0.5 * (4.0 / 3.0 - 0.1 * np.cos(theta) ** 2 / 1.1)
    )
    x_acc = temp - 0.05 * theta_acc * np.cos(theta) / 1.1
    state = (x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot)
    state = np.array([*state, theta_dot + 0.02 * theta_acc])
    return state, abs(state[0]) > 2.4 or abs(state[2]) > 12 * 2 * np.pi / 360


def test_cartpole_follows_its_equations_up_to_the_true_last_observation():
    recording = Recording("gymnax/CartPole-v1", limit=18)
    rows, obs = recording.rows, recording.obs
    assert rows.terminated.any() and rows.truncated.any()
    for t, n in zip(*np.nonzero(rows.valid), strict=True):
        expected, fell = cartpole_step(obs[t, n], rows.action[t, n])
        np.testing.assert_allclose(obs[t + 1, n], expected, rtol=1e-4, atol=1e-5)
        assert rows.terminated[t, n] == fell
        assert rows.reward[t, n] == 1
    for t, n in zip(*np.nonzero(~rows.valid), strict=True):
        assert np.all(np.abs(obs[t + 1, n]) <= 0.05)


def test_brax_follows_the_raw_simulator_up_to_the_true_last_observation():
    env = make("brax/inverted_pendulum", limit=30)
    raw = env.task.env
    state, obs = jax.jit(env.reset)(jax.random.key(0))
    by_hand = env.task.unwrap(state.task)
    np.testing.assert_array_equal(by_hand.obs, obs)
    raw_step, step = jax.jit(jax.vmap(raw.step)), jax.jit(partial(env.step, KEY))
    running, ended = np.ones(NUM_ENVS, bool), []
    for t in range(30):
        action = random_action(env.spec.action, jax.random.key(t), NUM_ENVS)
        by_hand = raw_step(by_hand, jnp.clip(action, -1, 1))
        state, out = step(state, action)
        np.testing.assert_allclose(out.obs[running], by_hand.obs[running], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(out.reward[running], by_hand.reward[running], rtol=1e-5)
        np.testing.assert_array_equal(out.terminated[running], by_hand.done[running] > 0)
        ended += [np.abs(out.obs[n, 1]) for n in np.flatnonzero(running & out.terminated)]
        running &= ~np.asarray(out.terminated)
    assert len(ended) > 1 and min(ended) > 0.2  # an episode ends when the pole leans by 0.2


def test_the_jitted_step_is_compiled_once(key):
    env = make("dummy/vector")
    step = jax.jit(env.step)
    state, _ = jax.jit(env.reset)(key)
    for _ in range(3):
        state, _ = step(key, state, jnp.zeros((NUM_ENVS, 6)))
    assert step._cache_size() == 1
