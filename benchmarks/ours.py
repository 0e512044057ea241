"""Contenders of purejaxppo: training, rollouts alone, and the simulator in the same loop.

Their sizes are one flat dict: `env` is the name of the environment, the other keys are fields of
sections of the config, `num_seeds` and `total_timesteps`.
"""

from functools import partial
from typing import Any

import harness

Sizes = dict[str, Any]


def start(devices: int = 0, *, cache: bool = True, calls_host: bool = False) -> None:
    """Start JAX as `python -m purejaxppo.train` does: compilation cache, cores as devices.

    Without the cache every program is compiled, for measurements of its compile time or memory.
    """
    import jax

    from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores

    use_compilation_cache()
    jax.config.update("jax_enable_compilation_cache", cache)
    use_cpu_cores(devices, calls_host=calls_host)


def config_of(sizes: Sizes) -> Any:
    """Return the Config of a run with these sizes on the devices of this machine."""
    import jax

    from purejaxppo.config.schema import HINTS, Config
    from purejaxppo.setup import divide, resolve

    given = {"env.name": sizes["env"], "eval.num_episodes": 0, "total_timesteps": 100_000_000}
    for name in HINTS:
        section, _, field = name.rpartition(".")
        if section in ("", "env", "network", "ppo") and field in sizes:
            given[name] = sizes[field]
    return divide(resolve(Config().replace(**given)), jax.devices()).config


def programs_of(config: Any) -> Any:
    """Return the programs of `python -m purejaxppo.train` for a config, with one seed or many."""
    import jax

    from purejaxppo.runs.programs import Programs, without_hang
    from purejaxppo.setup import divide, resolve

    return without_hang(Programs(divide(resolve(config), jax.devices())))


def updates_of(config: Any) -> tuple[Any, Any]:
    """Compile a training, and return (number of updates -> environment steps, its programs)."""
    import numpy as np

    programs = programs_of(config)
    state = programs.init()
    programs.compile(state)

    def run(updates: int) -> int:
        nonlocal state
        state, metrics = programs.train_chunk(state, programs.hp, np.int32(updates))
        return int(np.sum(metrics.env_steps))

    return run, programs


def train(sizes: Sizes, seconds: float) -> None:
    """Run the same compiled programs as `python -m purejaxppo.train`."""
    run, programs = updates_of(config_of(sizes))
    harness.rounds(run, seconds)
    programs.close()


def rollouts(sizes: Sizes, seconds: float) -> None:
    """Run rollouts with actions of the network, stored as for an update, without updates."""
    import jax
    import jax.numpy as jnp

    from purejaxppo import learner
    from purejaxppo.parts import make_parts

    parts = make_parts(config_of(sizes))
    state = jax.jit(partial(learner.init_state, parts))(jax.random.key(0), 0)

    @jax.jit
    def rollout(agent, state, key):
        key, now = jax.random.split(key)
        out = learner.collect(parts, agent, state, now, 0.0)
        rows = out.transitions
        return out.end, key, jnp.sum(rows.valid), (rows, out.stored, out.episodes)

    carried = state.rollout, state.key

    def run(count: int) -> int:
        nonlocal carried
        total = 0
        for _ in range(count):
            *carried, steps, _ = rollout(state.agent, *carried)
            total += int(steps)
        return total

    harness.rounds(run, seconds)
    parts.env.close()


def random_actions(sizes: Sizes, seconds: float) -> None:
    """Run uniform random actions in the compiled loop, without a network."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from purejaxppo.envs import registry
    from purejaxppo.parallel.shards import Shards
    from purejaxppo.streams import BEGIN_ROLLOUT, ENVIRONMENTS, stream

    config = config_of(sizes)
    shards = Shards(config.num_shards, jax.devices())
    env = registry.make(config.env, config.env.num_envs // config.num_shards)
    n, length = env.spec.num_envs, config.ppo.rollout_length

    def step(state, key):
        state, out = env.step(stream(key, ENVIRONMENTS), state, draw(env.spec.action, n, key))
        return state, jnp.sum(out.valid)

    def rollouts(state, key, shard, count):
        def rollout(_, carried):
            state, key, steps = carried
            key, now = jax.random.split(key)
            state = env.begin_rollout(state, stream(now, BEGIN_ROLLOUT), 0.0)
            state, valid = jax.lax.scan(step, state, jax.random.split(now, length))
            return state, key, steps + jnp.sum(valid)

        key = jax.random.fold_in(key, shard)
        start = (state, key, jnp.zeros((), jnp.int32))
        state, _, steps = jax.lax.fori_loop(0, count, rollout, start)
        return state, shards.psum(steps)

    ids = jnp.arange(config.num_shards)
    init = jax.jit(
        shards.map(lambda key, i: env.reset(jax.random.fold_in(key, i))[0], (None, 0), 0),
        out_shardings=shards.shardings(0),
    )
    program = jax.jit(
        shards.map(rollouts, (0, None, 0, None), (0, None)),
        donate_argnums=0,
        out_shardings=shards.shardings((0, None)),
    )
    state, key = init(jax.random.key(0), ids), jax.random.key(1)

    def run(count: int) -> int:
        nonlocal state, key
        key, now = jax.random.split(key)
        state, steps = program(state, now, ids, np.int32(count))
        return int(steps)

    harness.rounds(run, seconds)


def draw(space: Any, n: int, key: Any, mask: Any = None) -> Any:
    """Draw uniform actions for n environments.

    Args:
        space: a Dict with separately drawn parts, a Box in [-1, 1], Discrete or MultiDiscrete.
        n: number of environments.
        key: random key.
        mask: allowed actions of a discrete space, of any shape; None: all.
    """
    import jax
    import jax.numpy as jnp

    from purejaxppo.spaces import Box, Dict, Discrete

    if isinstance(space, Dict):
        keys = jax.random.split(key, len(space.spaces))
        parts = zip(space.spaces, keys, strict=True)
        return {name: draw(part, n, key) for (name, part), key in parts}
    if isinstance(space, Box):
        return jax.random.uniform(key, (n, *space.shape), minval=-1.0, maxval=1.0)
    choices = space.n if isinstance(space, Discrete) else jnp.array(space.nvec)
    shape = (n, *jnp.shape(choices))
    if mask is None:
        return jax.random.randint(key, shape, 0, choices)
    allowed = mask.reshape(*shape, -1) > 0
    return jax.random.categorical(key, jnp.where(allowed, 0.0, -jnp.inf))


def pool_alone(sizes: Sizes, seconds: float) -> None:
    """Run EnvPool without JAX: its synchronous step with prepared actions."""
    import envpool
    import numpy as np

    n, length = sizes["num_envs"], sizes["rollout_length"]
    name, options = sizes["env"].partition("/")[2], sizes.get("options", {})
    env = envpool.make(name, env_type="gymnasium", num_envs=n, seed=0, **options)
    env.action_space.seed(0)
    actions = np.stack([env.action_space.sample() for _ in range(length * n)])
    actions = actions.reshape(length, n, *actions.shape[1:])
    env.reset()

    def step(action: Any) -> Any:
        _, _, terminated, truncated, _ = env.step(action)
        return terminated | truncated

    harness.rounds(stepping(step, actions, n), seconds)


def stepping(step: Any, actions: Any, n: int) -> Any:
    """Return a function that steps a pool of n environments `count` times with all actions.

    Args:
        step: actions [N, ...] -> done [N].
        actions: [T, N, ...]
        n: number of environments; the step after an end is a reset and not counted.
    """
    import numpy as np

    done = np.zeros(n, bool)

    def run(count: int) -> int:
        nonlocal done
        steps = 0
        for _ in range(count):
            for action in actions:
                steps += n - int(done.sum())
                done = step(action)
        return steps

    return run
