"""Multi-agent environments in JAX and PettingZoo: rows by hand, padding, masks, containment."""

import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import stepping
from support.paths import EXAMPLE_WORLDS

from purejaxppo import load_config, make_train
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import families, registry
from purejaxppo.envs.base import MultiStep
from purejaxppo.envs.host.bridge import simulator_errors
from purejaxppo.envs.host.workers.errors import SimulatorError
from purejaxppo.envs.teams import Team, common
from purejaxppo.envs.vectorize import VectorEnv
from purejaxppo.envs.worlds import JointTask, MultiAgentEnv
from purejaxppo.envs.wrappers import TimeLimit, UnitActions
from purejaxppo.runs import evaluation
from purejaxppo.runs.agent import Agent
from purejaxppo.runs.evaluation import Evaluator, evaluate
from purejaxppo.runs.recording import record_states
from purejaxppo.setup import resolve
from purejaxppo.spaces import Box, Dict, Discrete, MultiDiscrete
from purejaxppo.types import AgentState, PolicyStep

HAND = f"pettingzoo/{EXAMPLE_WORLDS}:Hand"
SIMULATORS = ("jax", "thread", "process")
FULL = pytest.mark.full
NOT_ALL = ("jax", "thread", pytest.param("process", marks=FULL))


class Hand:
    """`example_worlds.Hand` in JAX."""

    agents = ("a", "b", "c")
    observation = (Box((2,)), Box((1,)), Box((3,)))
    action = (Discrete(3), Discrete(2), Discrete(3))
    max_episode_steps = 10
    cheap_reset = True

    def __init__(self, nan_at=0):
        self.nan_at = nan_at

    def obs(self, t, action):
        time = t.astype(jnp.float32)
        bad = (t == self.nan_at) & (t > 0)
        first = jnp.where(bad, jnp.nan, time)
        return (
            jnp.stack([time, -time]),
            time[None],
            jnp.stack([first, time, action.astype(jnp.float32)]),
        )

    def reset(self, key):
        t = jnp.zeros((), jnp.int32)
        return t, self.obs(t, t)

    def step(self, key, state, action):
        t = state + 1
        reward = 10 * jnp.arange(3) + t + 100 * jnp.stack(action)
        over = (t >= jnp.array([4, 2, 4])) | jnp.array([action[0] == 2, False, False])
        return t, MultiStep(self.obs(t, action[2]), reward, over, jnp.zeros((), bool))


class WithState(Hand):
    """A task whose global state is its clock."""

    state_space = Box((2,))

    def global_state(self, state):
        return jnp.stack([state, -state])


def lift(task, num_worlds, limit=0, **options):
    limited = TimeLimit(task, limit or task.max_episode_steps)
    world = UnitActions(JointTask(limited, **options))
    return MultiAgentEnv(VectorEnv(world, num_worlds, fresh_every_step=True), world.team)


def pettingzoo(name, rows, *, limit=0, kind="thread", **options):
    pytest.importorskip("pettingzoo")
    config = EnvConfig(
        name=f"pettingzoo/{EXAMPLE_WORLDS}:{name}",
        num_envs=rows,
        max_episode_steps=limit,
        options={"workers": kind, **options},
    )
    return registry.make(config, rows)


def hand(simulator, *, limit=0, nan_at=0):
    """Return two environments with six rows."""
    if simulator == "jax":
        return lift(Hand(nan_at), 2, limit)
    return pettingzoo("make_hand", 6, limit=limit, kind=simulator, nan_at=nan_at)


def play(env, actions, seeds=None):
    """Return first observations and the steps [T, N, ...] of actions [T, N, ...]."""

    def run(key):
        state, obs = env.reset(key)
        return obs, stepping.play(env, stepping.begin(env, state), actions)[1]

    key = jax.random.key(0)
    try:
        with simulator_errors("worlds", env):
            if seeds:
                return jax.device_get(jax.jit(jax.vmap(run))(jax.random.split(key, seeds)))
            return jax.device_get(jax.jit(run)(key))
    finally:
        env.close()


# Environment 0: a stays (action 1). Environment 1: a leaves in step 1 (2). b does 1, c does 2.
ACTIONS = jnp.array([[1, 1, 2, 2, 1, 2]] * 6, jnp.int32)


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_rows_equal_hand_worked_ones(simulator):
    first, out = play(hand(simulator), ACTIONS)
    np.testing.assert_array_equal(first["agent"], [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(first["obs"], np.zeros((6, 3)))
    np.testing.assert_array_equal(
        out.reward,
        [
            [101, 111, 221, 201, 111, 221],
            [102, 112, 222, 0, 112, 222],  # environment 1: a left in the previous step
            [103, 0, 223, 0, 0, 223],
            [104, 0, 224, 0, 0, 224],
            [0, 0, 0, 0, 0, 0],  # both environments reset
            [101, 111, 221, 201, 111, 221],
        ],
    )
    np.testing.assert_array_equal(
        out.valid,
        [
            [1, 1, 1, 1, 1, 1],
            [1, 1, 1, 0, 1, 1],
            [1, 0, 1, 0, 0, 1],
            [1, 0, 1, 0, 0, 1],
            [0, 0, 0, 0, 0, 0],
            [1, 1, 1, 1, 1, 1],
        ],
    )
    np.testing.assert_array_equal(
        out.terminated,
        [
            [0, 0, 0, 1, 0, 0],
            [0, 1, 0, 0, 1, 0],
            [0, 0, 0, 0, 0, 0],
            [1, 0, 1, 0, 0, 1],
            [0, 0, 0, 0, 0, 0],
            [0, 0, 0, 1, 0, 0],
        ],
    )
    assert not out.truncated.any() and not out.diverged.any()
    np.testing.assert_array_equal(out.obs["agent"], [[0, 1, 2, 0, 1, 2]] * 6)
    a, b, c = out.obs["obs"][:, 0], out.obs["obs"][:, 1], out.obs["obs"][:, 2]
    np.testing.assert_array_equal(
        a, [[1, -1, 0], [2, -2, 0], [3, -3, 0], [4, -4, 0], [0, 0, 0], [1, -1, 0]]
    )
    np.testing.assert_array_equal(b[:, 0], [1, 2, 2, 2, 0, 1])  # held after it left
    np.testing.assert_array_equal(b[:, 1:], np.zeros((6, 2)))
    np.testing.assert_array_equal(
        c, [[1, 1, 2], [2, 2, 2], [3, 3, 2], [4, 4, 2], [0, 0, 0], [1, 1, 2]]
    )
    np.testing.assert_array_equal(out.obs["obs"][:, 3, 0], [1, 1, 1, 1, 0, 1])


@pytest.mark.parametrize("simulator", NOT_ALL)
def test_a_time_limit_truncates_all_remaining_agents_together(simulator):
    _, out = play(hand(simulator, limit=3), ACTIONS)
    np.testing.assert_array_equal(out.truncated[2], [1, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(out.truncated.sum(axis=0), [1, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(out.terminated[2], np.zeros(6))
    np.testing.assert_array_equal(out.valid[3], np.zeros(6))
    np.testing.assert_array_equal(out.obs["obs"][2, 2], [3, 3, 2])  # the true last observation
    np.testing.assert_array_equal(out.obs["obs"][3], np.zeros((6, 3)))
    np.testing.assert_array_equal(out.valid[4:], out.valid[:2])


@pytest.mark.parametrize("simulator", NOT_ALL)
def test_a_nan_of_one_agent_diverges_all_remaining_agents_of_its_environment(simulator):
    _, out = play(hand(simulator, nan_at=3), ACTIONS)
    np.testing.assert_array_equal(out.diverged[2], [1, 0, 1, 0, 0, 1])
    assert out.diverged[:5].sum() == 3
    assert not out.terminated[2].any() and not out.truncated.any()
    np.testing.assert_array_equal(out.valid[2], np.zeros(6))
    np.testing.assert_array_equal(out.reward[2], np.zeros(6))
    np.testing.assert_array_equal(out.obs["obs"][2], np.zeros((6, 3)))
    np.testing.assert_array_equal(out.obs["agent"][2], [0, 1, 2, 0, 1, 2])
    # In JAX the next episode starts immediately, on the host one row later without a mask.
    if simulator != "jax":
        np.testing.assert_array_equal(out.obs["action_mask"][2], np.ones((6, 3)))
    begins = 2 if simulator == "jax" else 3
    np.testing.assert_array_equal(out.valid[3], np.full(6, simulator == "jax"))
    np.testing.assert_array_equal(out.valid[begins + 1], np.ones(6))
    np.testing.assert_array_equal(out.obs["obs"][begins + 1], out.obs["obs"][0])


@pytest.mark.parametrize("simulator", ["jax", "thread"])
def test_spaces_are_padded_to_the_largest_and_masks_mark_valid_actions(simulator):
    env = hand(simulator)
    assert env.spec.observation == Dict.of(
        {
            "action_mask": Box((3,), 0.0, 1.0, "uint8"),
            "agent": Discrete(3),
            "obs": Box((3,)),
        }
    )
    assert env.spec.action == Discrete(3)
    assert (env.spec.num_envs, env.spec.num_agents) == (6, 3)
    assert env.spec.agents == ("a", "b", "c")
    first, out = play(env, ACTIONS)
    masks = [[1, 1, 1], [1, 1, 0], [1, 1, 1]] * 2
    np.testing.assert_array_equal(first["action_mask"], masks)
    np.testing.assert_array_equal(out.obs["action_mask"], [masks] * 6)
    assert out.obs["action_mask"].dtype == np.uint8


@pytest.mark.parametrize("simulator", ["jax", "thread"])
def test_an_action_beyond_an_agents_space_is_its_last_action(simulator):
    _, out = play(hand(simulator), ACTIONS.at[:, 1].set(2))
    assert out.reward[0, 1] == 111


def test_the_global_state_is_the_environments_own_or_all_observations():
    _, out = play(lift(WithState(), 2, global_state=True), ACTIONS)
    np.testing.assert_array_equal(out.obs["state"][:, 4], [[t, -t] for t in (1, 2, 3, 4, 0, 1)])
    _, out = play(lift(Hand(), 2, global_state=True), ACTIONS)
    joined = out.obs["obs"].reshape(6, 2, 9)
    np.testing.assert_array_equal(out.obs["state"], np.repeat(joined, 3, axis=1))
    _, out = play(pettingzoo("WithState", 6, global_state=True), ACTIONS)
    left = [[1, 3], [2, 2], [3, 2], [4, 0], [0, 3], [1, 3]]
    np.testing.assert_array_equal(out.obs["state"][:, 1], left)
    _, out = play(pettingzoo("Hand", 6, global_state=True), ACTIONS)
    np.testing.assert_array_equal(out.obs["state"], np.repeat(joined, 3, axis=1))
    with pytest.raises(SimulatorError, match=r"state\(\) returned 2 numbers instead of 3\."):
        play(pettingzoo("ShrinkingState", 6, global_state=True), ACTIONS)


@pytest.mark.parametrize("where", ["obs", "info"])
def test_masks_of_pettingzoo_are_part_of_the_observation(where):
    env = pettingzoo("Masked", 3, where=where, mask=where == "info")
    first, out = play(env, jnp.array([[1, 1, 2]] * 3, jnp.int32))
    assert env.spec.observation["obs"] == Box((3,))
    np.testing.assert_array_equal(first["action_mask"], [[1, 0, 0], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(out.obs["action_mask"][0], [[0, 1, 0], [0, 1, 0], [0, 1, 0]])
    # b is out after step 2, and its row is held.
    np.testing.assert_array_equal(out.obs["action_mask"][1], [[0, 0, 1], [1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(out.obs["action_mask"][2], [[1, 0, 0], [1, 0, 0], [1, 0, 0]])


class BadStarts(Hand):
    """Half of the episodes start with NaN for one agent."""

    def reset(self, key):
        t, (first, *others) = super().reset(key)
        return t, (jnp.where(jax.random.bernoulli(key), jnp.nan, first), *others)


def test_a_start_with_nan_is_not_used_by_any_agent():
    _, out = play(lift(BadStarts(), 32), jnp.zeros((24, 96), jnp.int32))
    assert np.isfinite(out.obs["obs"]).all()
    diverged, valid = (np.asarray(x).reshape(24, 32, 3) for x in (out.diverged, out.valid))
    ended = ~valid.any(axis=2)[:-1] & valid.any(axis=2)[1:]
    assert valid[1:][ended].all()  # all agents begin together
    counted = diverged[1:].any(axis=2)  # without the first states of the run
    assert counted.any() and (diverged[1:] == counted[..., None]).all()


class Empty(Hand):
    """No agent's mask allows an action."""

    observation = tuple(
        Dict.of({"action_mask": Box((n,), 0.0, 1.0, "uint8"), "obs": space})
        for n, space in zip((3, 2, 3), Hand.observation, strict=True)
    )

    def obs(self, t, action):
        masks = [jnp.zeros(n, jnp.uint8) for n in (3, 2, 3)]
        arrays = super().obs(t, action)
        return tuple({"action_mask": m, "obs": x} for m, x in zip(masks, arrays, strict=True))


@pytest.mark.parametrize("simulator", ["jax", "thread"])
def test_an_empty_mask_allows_the_actions_of_its_agent_only(simulator):
    env = lift(Empty(), 1) if simulator == "jax" else pettingzoo("Masked", 3, empty=True)
    first, out = play(env, jnp.zeros((2, 3), jnp.int32))
    for masks in (first["action_mask"], *out.obs["action_mask"][:1]):
        np.testing.assert_array_equal(masks, [[1, 1, 1], [1, 1, 0], [1, 1, 1]])


def test_continuous_actions_are_scaled_to_the_bounds_of_each_agent():
    env = pettingzoo("Pushes", 3)
    assert env.spec.action == Box((3,), -1.0, 1.0)
    actions = jnp.array([[[0.5, -1, 9], [-0.5, 9, 9], [1, 0, -2]]], jnp.float32)
    _, out = play(env, actions)
    # a: 3 + 0 in [0, 4]; b: 0 in [-1, 3]; c: 2 + 0 - 2 in [-2, 2].
    np.testing.assert_allclose(out.reward, [[3, 0, 0]], atol=1e-6)


def test_agents_with_equal_spaces_may_have_composite_actions_and_image_observations():
    env = pettingzoo("Robots", 4)
    assert env.spec.observation["obs"] == Box((2, 3, 1), 0.0, 255.0, "uint8")
    assert env.spec.action == Dict((("pick", Discrete(5)), ("push", Box((1,), -1.0, 1.0))))
    actions = {
        "pick": jnp.array([[0, 1, 2, 3]] * 4),
        "push": jnp.array([[[0.25], [0.5], [-0.5], [9.0]]] * 4),
    }
    _, out = play(env, actions)
    np.testing.assert_allclose(out.reward[0], [1011, 2022, 1028, 2044])
    np.testing.assert_array_equal(
        out.truncated, [[False] * 4, [False] * 4, [True] * 4, [False] * 4]
    )
    np.testing.assert_array_equal(out.obs["obs"][1, :, 1, 2, 0], [2, 102, 2, 102])


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (Box((2,)), Box((2, 2)), "a Box of shape (2, 2)"),
        (Box((2,)), Box((3,), 0.0, 1.0, "uint8"), "with dtype uint8"),
        (Box((2,), -1.0, 1.0), Box((3,)), "a Box of shape (3,) with dtype float32 without bounds"),
        (MultiDiscrete((2,)), MultiDiscrete((3,)), "MultiDiscrete(nvec=(3,))"),
    ],
)
def test_spaces_that_differ_in_more_than_size_are_not_padded(one, other, words):
    with pytest.raises(ValueError) as error:
        common((one, one, other), ("a", "b", "c"), "observation")
    assert str(error.value).startswith(
        "agents a and c have observation spaces without a common one"
    )
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "bounds"),
    [
        ((0.0, 0.0), (3.0, 7.0), "uint8", (0.0, 7.0)),
        ((1.0, 2.0), (3.0, 255.0), "uint8", (0.0, 255.0)),
        ((-5.0, 1.0), (-1.0, 4.0), "int8", (-5.0, 4.0)),
    ],
)
def test_bounds_of_padded_integers_contain_the_padding(low, high, dtype, bounds):
    vectors = [Box((n,), *x, dtype) for n, *x in zip((1, 2), low, high, strict=True)]
    assert common(vectors, ("a", "b"), "observation") == Box((2,), *bounds, dtype)


def test_bounded_vectors_are_padded_within_bounds():
    spaces = Box((1,), 0.0, 4.0), Box((2,), -1.0, 3.0)
    team = Team(("a", "b"), (Box((2,)), Box((2,))), spaces)
    assert team.action == Box((2,), -1.0, 1.0)
    assert team.joint_action == Box((2, 2), ((0.0, -1.0), (-1.0, -1.0)), ((4.0, 1.0), (3.0, 3.0)))
    one, other = team.split(np.array([[1.0, 9.0], [2.0, 3.0]]), np)
    np.testing.assert_array_equal(one, [1.0])
    np.testing.assert_array_equal(other, [2.0, 3.0])


PAIR = Dict.of({"a": Discrete(3), "b": Discrete(2)})
"""Space of two actions of an agent."""


def of_two(mask, action=PAIR):
    """Return the team of two agents with masks of this size."""
    space = Dict.of({"obs": Box((2,)), "action_mask": Box((mask,), 0.0, 1.0, "uint8")})
    return Team.of(("x", "y"), (space, space), (action, action))


@pytest.mark.parametrize("xp", [np, jnp])
def test_a_mask_of_several_actions_may_be_one_array(xp):
    masks = [xp.array([1, 0, 1, 0, 1], xp.uint8), None]
    joined = of_two(5).join_masks(masks, xp)
    assert {name: x.tolist() for name, x in joined.items()} == {
        "a": [[1, 0, 1], [1, 1, 1]],
        "b": [[0, 1], [1, 1]],
    }
    by_part = [{"a": masks[0][:3], "b": masks[0][3:]}, None]
    jax.tree.map(np.testing.assert_array_equal, of_two(5).join_masks(by_part, xp), joined)


@pytest.mark.parametrize(("size", "action", "count"), [(4, PAIR, 5), (3, Discrete(4), 4)])
def test_a_mask_of_a_wrong_size_is_an_error(size, action, count):
    message = f"agent x: the action_mask has {size} entries, but there are {count} discrete actions"
    with pytest.raises(ValueError, match=message):
        of_two(size, action)


def test_a_mask_with_several_axes_is_flattened():
    mask = Box((2, 3), 0.0, 1.0, "uint8")
    space = Dict.of({"obs": Box((2,)), "action_mask": mask})
    team = Team.of(("x",), (space,), (MultiDiscrete((3, 3)),))
    joined = team.join_masks([np.array([[1, 0, 1], [0, 0, 1]])], np)
    assert joined.tolist() == [[1, 0, 1, 0, 0, 1]]


@pytest.mark.parametrize("sizes", [{"a": 2, "b": 3}, {"p": 3, "q": 2}])
def test_a_dict_of_masks_with_other_parts_is_an_error(sizes):
    parts = {name: Box((n,), 0.0, 1.0, "uint8") for name, n in sizes.items()}
    space = Dict.of({"obs": Box((2,)), "action_mask": Dict.of(parts)})
    with pytest.raises(ValueError, match="agent x: the parts of the action_mask differ"):
        Team.of(("x",), (space,), (PAIR,))


def test_vmapped_seeds_of_multi_agent_environments_share_one_pool():
    env = pettingzoo("Hand", 6)
    _, out = play(env, ACTIONS, seeds=3)
    _, alone = play(pettingzoo("Hand", 6), ACTIONS)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, [y] * 3), out, alone)


def test_num_envs_that_is_not_a_multiple_of_the_agents_is_rejected_with_a_suggestion():
    with pytest.raises(ValueError, match=r"env\.num_envs = 7 counts agents.*multiple of 3 .*= 6$"):
        registry.make(EnvConfig(name="particles/spread", num_envs=7), 7)
    with pytest.raises(
        ValueError, match=r"multiple of 6 \(3 agents x 2 shards\). Try env.num_envs = 12$"
    ):
        registry.make(EnvConfig(name="particles/spread", num_envs=10), 5)
    with pytest.raises(ValueError, match=r"shards\). Try env.num_envs = 96$"):
        registry.make(EnvConfig(name="particles/spread", num_envs=100), 50)  # a multiple of 4, too
    with pytest.raises(ValueError, match=r"env\.num_envs = 1 .*Try env.num_envs = 3$"):
        pettingzoo("Hand", 1)
    assert registry.make(EnvConfig(name="particles/tag"), 6, evaluation=True).spec.num_envs == 10


def test_multi_agent_environments_that_terminate_need_no_time_limit():
    env = pettingzoo("Endless", 6)
    assert env.spec.max_episode_steps == 0
    _, out = play(env, ACTIONS)
    _, limited = play(pettingzoo("Hand", 6), ACTIONS)
    jax.tree.map(np.testing.assert_array_equal, out, limited)
    assert out.terminated.any() and not out.truncated.any()


@pytest.mark.parametrize("limit", [np.int64(3), 3.0, np.array(3)], ids=repr)
def test_max_cycles_may_have_any_numeric_type(limit):
    world = pytest.importorskip("purejaxppo.envs.host.workers.pettingzoo_world")
    spec = world.PettingZooSpec(f"{EXAMPLE_WORLDS}:Cycles", {"cycles": limit})
    assert spec().max_episode_steps == 3


@pytest.mark.parametrize("limit", [0, 2.5, "3", True])
def test_max_cycles_that_is_not_a_whole_number_is_rejected(limit):
    text = message("Cycles", cycles=limit)
    assert text.endswith(
        f"Cycles: max_cycles = {limit!r}: a time limit must be a whole number of steps, at least "
        f"1. Use None for no limit."
    )


def message(name, **options):
    with pytest.raises(ValueError) as error:
        pettingzoo(name, 3, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unusable_multi_agent_environments_get_a_one_sentence_error():
    text = message("Mixed")
    assert "agents a and b have action spaces without a common one" in text
    assert "Discrete(n=2)" in text and "a Box of shape (2,)" in text
    assert "has no function or class 'Hnad'" in message("Hnad")
    assert "env.options: " in message("Hand", speed=3) and "speed" in message("Hand", speed=3)
    assert "mask = 1: must be true or false" in message("Hand", mask=1)
    assert "'action_mask' in every info, but the info from reset for a has no keys" in message(
        "Masked", where="nowhere", mask=True
    )
    assert "expected a pettingzoo.ParallelEnv, got int" in message("make_nothing")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("JoinsLater", {}, "c is not in agents after reset"),
        ("Vanishes", {}, "b is not in agents any more, but was not terminated"),
        ("Breaks", {}, "the wire is cut"),
        ("Beyond", {}, r"worlds: b: observation.side = 3, but its space .Discrete.2.. contains"),
        ("ComesBack", {}, "b is in agents again after it was terminated or truncated"),
        ("ComesBack", {"gone": False}, "b is in agents again after it was terminated or"),
        ("Grows", {}, "d is in agents, but not in possible_agents. List every agent in possible_"),
        (
            "PaysNothing",
            {},
            "the environment returned no reward for b. Return a dict with an entry",
        ),
        (
            "PaysNothing",
            {"missing": False},
            "step returned reward of b = None. Return a single number",
        ),
        ("OldStep", {}, "step returned 4 values, as in Gym before 0.26. Return"),
        ("OldReset", {}, "reset returned only an observation, as in Gym before 0.26"),
    ],
)
def test_failing_multi_agent_environments_are_reported(name, options, words):
    with pytest.raises(SimulatorError, match=words):
        play(pettingzoo(name, 3, **options), jnp.zeros((3, 3), jnp.int32))


def test_infos_of_none_have_no_mask():
    with pytest.raises(ValueError, match=r"the info from reset for a has no keys\. Add it"):
        pettingzoo("Masked", 3, where="None", mask=True)


@pytest.mark.parametrize("name", ["KeepsTheEnded", "PaysArrays"])
def test_multi_agent_environments_may_list_ended_agents_and_return_arrays_of_one_value(name):
    actions = jnp.array([[1, 1, 2]] * 6, jnp.int32)
    rows = [play(pettingzoo(x, 3), actions)[1] for x in (name, "Hand")]
    jax.tree.map(np.testing.assert_array_equal, *rows)
    assert rows[0].terminated.any()


# Since 1.27 PettingZoo's modules recommend its registry.
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pettingzoo.classic.tictactoe_v3", "is turn-based"),
        ("mpe2:parallel", "mpe2 does not define 'parallel'"),
        ("mpe2.simple_spred_v3", "mpe2 has no module .*. Did you mean 'mpe2.simple_spread_v3'"),
        ("sisl/persuit-v5", "unknown id"),
        ("nopackage.world_v1", "the package 'nopackage' is not installed"),
        ("json", "json does not define 'parallel_env'"),
        ("numpy:zeros", "numpy:zeros: .*argument"),
    ],
)
def test_wrong_pettingzoo_names_get_a_one_sentence_error(name, words):
    pytest.importorskip("mpe2")
    config = EnvConfig(name=f"pettingzoo/{name}", options={"workers": "thread"})
    with pytest.raises(ValueError, match=words) as error:
        registry.make(config, 2)
    assert "\n" not in str(error.value)


def test_a_registered_id_is_made_or_its_missing_package_is_reported():
    pettingzoo = pytest.importorskip("pettingzoo", minversion="1.27")
    from pettingzoo.env_registry.registration import register

    assert "sisl/pursuit-v5" in families.load("pettingzoo").tasks()
    register("parallel", "hand/hand-v0", runpy.run_path(str(EXAMPLE_WORLDS))["Hand"])
    register("parallel", "hand/lost-v0", "no_such_module:Hand")

    def made(name):
        config = EnvConfig(name=f"pettingzoo/hand/{name}", options={"workers": "thread"})
        return registry.make(config, 3)

    try:
        assert made("hand-v0").spec.agents == ("a", "b", "c")
        with pytest.raises(
            ValueError, match="needs a missing package: Failed to import entry point"
        ):
            made("lost-v0")
        with pytest.raises(ValueError, match=r"unknown id\. Did you mean 'hand/hand-v0'"):
            made("hnad-v0")
    finally:
        for name in ("hand/hand-v0", "hand/lost-v0"):
            del pettingzoo.parallel_registry[name]


def trained(name, **overrides):
    config = load_config(
        "cartpole.yaml",
        {
            "env.name": name,
            "env.num_envs": 6,
            "network.hidden": (8,),
            "ppo.rollout_length": 16,
            "ppo.num_minibatches": 2,
            "total_timesteps": 192,
            "num_shards": 1,
            **overrides,
        },
    )
    train = make_train(config)
    result = jax.jit(train)(jax.random.key(0))
    close = getattr(train, "close", None)
    if close:
        close()
    return Agent(config, jax.device_get(result.agent)), result.curves


@pytest.mark.parametrize("name", ["jax", pytest.param("thread", marks=FULL)])
def test_an_agent_trains_is_evaluated_and_recorded(name):
    if name == "jax":
        options = {"num_hunters": 1, "num_prey": 2, "global_state": True}
        agent, curves = trained("particles/tag", **{"env.options": options})
    else:
        pytest.importorskip("pettingzoo")
        options = {"workers": "thread"}
        agent, curves = trained(HAND, **{"env.options": options})
    assert np.isfinite(np.asarray(curves.losses.policy_loss)).all()
    result = evaluate(agent, 4)  # rounded up to two environments of three agents
    assert result.returns.shape == result.lengths.shape == (6,)
    _, states, rewards = record_states(agent)
    assert len(states) == len(rewards) + 1 > 1
    if name == "thread":
        assert result.lengths[1] == 2 and len(rewards) == 4
        assert states[2].pixels()[0, 0, 0] == 80


def test_evaluations_count_an_episode_of_each_agent_of_whole_environments(make_config, monkeypatch):
    pytest.importorskip("pettingzoo")
    env = {"name": HAND, "num_envs": 6, "options": {"workers": "thread"}}
    agent = Agent(make_config(env=env), AgentState({}, None))

    class Fixed:
        """A policy that always takes 1 for a, 1 for b and 2 for c."""

        network = agent.policy.network

        @staticmethod
        def act_deterministically(state, key, carry, obs, start):
            action = jnp.array([1, 1, 2])[obs["agent"]]
            return PolicyStep(carry, action, jnp.zeros(len(action)), action)

    evaluator = Evaluator(resolve(agent.config), Fixed, 5)
    returns, lengths, *_ = jax.jit(evaluator.evaluate)(agent.state, jax.random.key(0))
    evaluator.close()
    np.testing.assert_array_equal(lengths, [4, 2, 4] * 2)
    np.testing.assert_array_equal(returns, [410, 223, 890] * 2)
    monkeypatch.setattr(evaluation, "MAX_PARALLEL", 4)  # turns of two environments
    monkeypatch.setattr(Agent, "policy", Fixed)
    np.testing.assert_array_equal(evaluate(agent, 7).returns, [410, 223, 890] * 3)


def test_joint_spaces_of_agents_with_equal_spaces_need_no_padding():
    class Alike(Hand):
        observation = (MultiDiscrete((5, 5)),) * 3
        action = (MultiDiscrete((2, 3)),) * 3

        def obs(self, t, action):
            return (jnp.stack([t, t + 1]),) * 3

        def step(self, key, state, action):
            assert all(one.shape == (2,) for one in action)
            t = state + 1
            reward = jnp.stack([one[0] + 10 * one[1] for one in action])
            return t, MultiStep(self.obs(t, t), reward, t >= jnp.full(3, 4), jnp.zeros((), bool))

    env = lift(Alike(), 2)
    assert env.spec.action == MultiDiscrete((2, 3))
    assert env.spec.observation["obs"] == MultiDiscrete((5, 5))
    actions = jnp.array([[[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]], jnp.int32)
    _, out = play(env, actions)
    np.testing.assert_array_equal(out.reward, [[0, 1, 10, 11, 20, 21]])
    np.testing.assert_array_equal(out.obs["obs"], [[[1, 2]] * 6])
