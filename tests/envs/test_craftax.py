"""Craftax: ends of episodes, the cost of a reset, options and rendered frames."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.costs import flops

from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.vectorize import strong_types
from purejaxppo.spaces import Box, Discrete
from purejaxppo.video import video

pytest.importorskip("craftax")

CLASSIC, PIXELS = "craftax/Craftax-Classic-Symbolic-v1", "craftax/Craftax-Classic-Pixels-v1"
NOOP = 0
FULL = pytest.mark.full  # tests that render frames


@pytest.mark.parametrize(
    ("name", "observation", "actions", "limit"),
    [
        (CLASSIC, Box((1345,)), 17, 10_000),
        pytest.param(PIXELS, Box((63, 63, 3), 0.0, 255.0, "uint8"), 17, 10_000, marks=FULL),
        ("craftax/Craftax-Symbolic-v1", Box((8268,)), 43, 100_000),
        pytest.param(
            "craftax/Craftax-Pixels-v1",
            Box((130, 110, 3), 0.0, 255.0, "uint8"), 43, 100_000, marks=FULL,
        ),
    ],
)  # fmt: skip
def test_spaces_and_limits_equal_the_simulators(name, observation, actions, limit):
    task = registry.make_task(EnvConfig(name))
    assert (task.observation, task.action) == (observation, Discrete(actions))
    assert task.max_episode_steps == limit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mobs": 3}, "has no such option. It has always_diamond, cow_health, day_length"),
        ({"max_timesteps": 10}, "has no such option"),
        ({"day_length": "long"}, "day_length = 'long': must be a whole number"),
        ({"always_diamond": 1}, "always_diamond = 1: must be true or false"),
        (
            {"zombie_health": True},
            "zombie_health = True: must be",
        ),
    ],
)
def test_wrong_options_get_a_one_sentence_error(options, message):
    with pytest.raises(ValueError, match=message) as error:
        registry.make_task(EnvConfig(CLASSIC, options=options))
    assert "\n" not in str(error.value)


def test_no_world_is_generated_inside_a_step(key):
    action = jax.ShapeDtypeStruct((4,), jnp.int32)
    envs = [registry.make(EnvConfig(CLASSIC, reset=reset), 4) for reset in ("every_step", "auto")]
    every_step, auto = (
        flops(env.step, key, jax.eval_shape(env.reset, key)[0], action) for env in envs
    )
    four_worlds = flops(envs[0].reset, key)
    assert every_step - auto == pytest.approx(four_worlds, rel=0.05)
    assert envs[1].fresh_per_rollout == 4  # of 16 starts


@pytest.fixture(scope="module")
def world():
    """Return (task, compiled step, first state) with 3 steps per episode."""
    task = registry.make_task(EnvConfig(CLASSIC, max_episode_steps=3))
    reset = jax.jit(lambda key: strong_types(task.reset(key)))
    step = jax.jit(lambda key, state, action: strong_types(task.step(key, state, action)))
    return task, step, reset(jax.random.key(0))[0]


def test_the_limit_truncates_and_a_death_terminates(world, key):
    _, step, start = world
    state, ends = start, []
    for _ in range(3):
        state, out = step(key, state, jnp.int32(NOOP))
        ends.append((bool(out.terminated), bool(out.truncated)))
    assert ends == [(False, False), (False, False), (False, True)]
    inner, steps = start
    _, out = step(key, (inner.replace(player_health=jnp.int32(0)), steps), jnp.int32(NOOP))
    assert out.terminated and not out.truncated
    # The simulator's own limit does not end the episode.
    old = (inner.replace(timestep=jnp.int32(20_000)), steps)
    assert not step(key, old, jnp.int32(NOOP))[1].terminated


def test_an_achievement_gives_reward_1_and_lost_health_minus_a_tenth(world, key):
    _, step, (inner, steps) = world
    # A sapling in hand, grass to the right.
    row, column = inner.player_position
    ready = inner.replace(
        map=inner.map.at[row, column + 1].set(2),
        inventory=inner.inventory.replace(sapling=jnp.int32(1)),
        player_direction=jnp.int32(2),
    )
    _, out = step(key, (ready, steps), jnp.int32(10))
    assert out.reward == 1
    achieved = [name for name, value in out.metrics.items() if value]
    assert achieved == ["achievements/place_plant"]
    assert not any(step(key, (inner, steps), jnp.int32(NOOP))[1].metrics.values())
    starving = inner.replace(
        player_food=jnp.int32(0), player_recover=jnp.float32(-14.9), player_health=jnp.int32(5)
    )
    assert step(key, (starving, steps), jnp.int32(NOOP))[1].reward == pytest.approx(-0.1)


@FULL
def test_videos_and_pixel_observations_use_the_simulators_renderer(world):
    pytest.importorskip("PIL")
    task, _, start = world
    (frame,) = video.frames(task, jax.device_get([start]), height=240, width=320)
    assert frame.shape == (240, 320, 3) and frame.dtype == np.uint8
    pixels = registry.make_task(EnvConfig(PIXELS)).task.task
    seen = jax.jit(pixels.see)(None, start[0])
    assert seen.shape == (63, 63, 3) and seen.dtype == jnp.uint8
    from craftax.craftax_classic import renderer

    assert renderer.load_all_textures.__module__ == "craftax.craftax_classic.constants"
    # The player is in the middle, on a texture that is neither black nor of one colour.
    assert len(np.unique(seen[21:28, 28:35].reshape(-1, 3), axis=0)) > 3
