"""Contenders of purejaxppo itself: training, rollouts alone, the simulator in the same loop.

Their sizes are one flat dict: `env` is the environment's name, the other keys are fields of the
config's parts, and `num_seeds` and `total_timesteps` of the config.
"""

from dataclasses import fields, replace
from functools import partial
from typing import Any

import turns

Sizes = dict[str, Any]


def start(devices: int = 0, *, cache: bool = True) -> None:
    """As `python -m purejaxppo.train` starts: a compilation cache, and cores as devices.

    Without the cache every program is compiled: where its seconds and its memory are measured.
    """
    import jax

    from purejaxppo.parallel.shards import use_compilation_cache, use_cpu_cores

    use_compilation_cache()
    jax.config.update("jax_enable_compilation_cache", cache)
    use_cpu_cores(devices)


def config_of(sizes: Sizes) -> Any:
    """The Config of a run that has these sizes, on this machine's devices."""
    import jax

    from purejaxppo.config.schema import Config, EnvConfig, EvalConfig, NetworkConfig, PPOConfig
    from purejaxppo.runs.programs import resolve_shards

    def part(kind: Any) -> Any:
        given = {f.name: sizes[f.name] for f in fields(kind) if f.name in sizes}
        # Sizes that a worker gets as JSON have lists.
        return kind(**{k: tuple(x) if isinstance(x, list) else x for k, x in given.items()})

    config = Config(
        env=replace(part(EnvConfig), name=sizes["env"]),
        network=part(NetworkConfig),
        ppo=part(PPOConfig),
        eval=EvalConfig(num_episodes=0),
        total_timesteps=sizes.get("total_timesteps", 100_000_000),
        num_seeds=sizes.get("num_seeds", 1),
    )
    return resolve_shards(config, len(jax.devices()))


def programs_of(config: Any) -> Any:
    """What `python -m purejaxppo.train` compiles for a config, seeds or one."""
    import jax

    from purejaxppo.runs import session

    return session.programs_of(config, jax.devices())[0]


def train(sizes: Sizes, seconds: float, *, memory: bool = False) -> None:
    """The same compiled programs as `python -m purejaxppo.train`; and what memory they take."""
    import machine
    import numpy as np

    programs = programs_of(config_of(sizes))
    state = programs.init()
    programs.compile(state)

    def run(updates: int) -> int:
        nonlocal state
        state, metrics = programs.train_chunk(state, programs.hp, np.int32(updates))
        return int(np.sum(metrics.env_steps))

    def peaks() -> dict[str, Any]:
        own = programs.train_chunk.memory_analysis()  # of one device
        total = own.argument_size_in_bytes + own.temp_size_in_bytes
        return {"program_mb": total * programs.shards.num_devices / 2**20, **machine.peak()}

    turns.rounds(run, seconds, peaks if memory else dict)
    programs.close()


def rollouts(sizes: Sizes, seconds: float) -> None:
    """Rollouts with the network's actions, stored as for an update that never comes."""
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

    turns.rounds(run, seconds)
    parts.env.close()


def random_actions(sizes: Sizes, seconds: float) -> None:
    """Uniform random actions in the compiled loop, no network."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from purejaxppo.envs import registry
    from purejaxppo.parallel.shards import Shards
    from purejaxppo.spaces import Discrete

    config = config_of(sizes)
    shards = Shards(config.num_shards, jax.devices())
    env = registry.make(config.env, config.env.num_envs // config.num_shards)
    n, length = env.spec.num_envs, config.ppo.rollout_length

    def action(key):
        if isinstance(env.spec.action, Discrete):
            return jax.random.randint(key, (n,), 0, env.spec.action.n)
        return jax.random.uniform(key, (n, *env.spec.action.shape), minval=-1.0, maxval=1.0)

    def one(state, key):
        state, out = env.step(state, action(key))
        return state, jnp.sum(out.valid)

    def rollouts(state, key, shard, count):
        def rollout(_, carried):
            state, key, steps = carried
            key, now = jax.random.split(key)
            state, valid = jax.lax.scan(one, env.refresh(state), jax.random.split(now, length))
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

    turns.rounds(run, seconds)


def pool_alone(sizes: Sizes, seconds: float) -> None:
    """EnvPool without JAX: its own synchronous step under actions drawn beforehand."""
    import envpool
    import numpy as np

    env = envpool.make(
        sizes["env"].partition("/")[2],
        env_type="gymnasium",
        num_envs=sizes["num_envs"],
        seed=0,
        **sizes.get("options", {}),
    )
    env.action_space.seed(0)
    length, n = sizes["rollout_length"], sizes["num_envs"]
    actions = np.stack([env.action_space.sample() for _ in range(length * n)])
    actions = actions.reshape(length, n, *actions.shape[1:])
    done = np.zeros(n, bool)
    env.reset()

    def run(count: int) -> int:
        nonlocal done
        steps = 0
        for _ in range(count):
            for action in actions:
                steps += n - int(done.sum())  # after an end, a step is a reset
                _, _, terminated, truncated, _ = env.step(action)
                done = terminated | truncated
        return steps

    turns.rounds(run, seconds)
