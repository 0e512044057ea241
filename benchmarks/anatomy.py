"""Time of an environment step by part: an iteration with its parts removed one by one.

    python benchmarks/anatomy.py [--tasks pixels envpool gymnasium] [--rounds 7] [--seconds 1]

Every stage is a separate program with one part less than the one before: the full iteration,
without the update, also without values and advantages, statistics, the policy, and last the
simulator under its Python API. All run as one shard. The time of a part is the difference between
two stages, so the parts sum to the total; medians over interleaved rounds are compared. A
difference far below zero means that the cores were busy. Rows go to
benchmarks/results/anatomy.jsonl.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import harness
import ours

COMMON = {"normalize_obs": True, "normalize_reward": True, "learning_rate": 0.0}
"""Settings of all tasks: every statistic, and a constant policy."""
HOPPER = {
    "env": "envpool/Hopper-v5",
    "num_envs": 64,
    "rollout_length": 128,
    "num_minibatches": 8,
    "num_epochs": 4,
    "hidden": (64, 64),
    **COMMON,
}
TASKS = {
    "pixels": {
        "env": "dummy/pixels",
        "num_envs": 8,
        "rollout_length": 128,
        "num_minibatches": 4,
        "num_epochs": 4,
        "hidden": (512,),
        "torso": "shared",
        "activation": "relu",
        "encoder": "cnn_nature",
        **COMMON,
    },
    "envpool": HOPPER,
    "gymnasium": HOPPER | {"env": "gymnasium/Hopper-v5"},
    "toy": {
        "env": "gymnasium/CartPole-v1",
        "num_envs": 2,
        "rollout_length": 4,
        "num_minibatches": 1,
        "num_epochs": 1,
        "hidden": (4,),
        **COMMON,
    },
}
PIECES = ("update", "values, advantages", "statistics", "inference, sampling", "loop, transfer")
"""The part that each stage has and the next one does not; the last one is the simulator."""
Stage = Callable[[int], int]
"""A function: number of rollouts -> environment steps."""


def main() -> None:
    """Measure the tasks in this process, one after another."""
    parser = harness.options(__doc__, "anatomy", rounds=7, seconds=1.0)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS))
    args = harness.parse(parser)
    ours.start()
    rows = []
    for task in args.tasks or [name for name in TASKS if (name == "toy") == args.toy]:
        results = measure(TASKS[task], args)
        rows.append(row(task, [[1e6 / x for x in result.speeds] for result in results.values()]))
        show(rows[-1])
    harness.keep(args, rows, "task", "device")


def measure(sizes: dict[str, Any], args: Any) -> dict[str, harness.Result]:
    """Return the speeds of each stage in each round."""
    from purejaxppo.envs import registry
    from purejaxppo.parts import make_parts

    parts = make_parts(replace(ours.config_of(sizes), num_shards=1))
    stages, actions = compiled_stages(parts)
    envs: list[Any] = []
    if registry.on_host(parts.config.env):
        envs = [parts.env, registry.make(parts.config.env, parts.env.spec.num_envs)]
        stages.append(pool_stage(envs[-1], actions))
    results = harness.alternate({str(i): stage for i, stage in enumerate(stages)}, args)
    for env in envs:
        env.close()
    return results


def compiled_stages(parts: Any) -> tuple[list[Stage], Any]:
    """Return the compiled stages, each with one part less, and the actions [T, N, ...] of the last.

    All results of a stage are among its outputs, since XLA removes unused computations.
    """
    import jax
    import jax.numpy as jnp

    from purejaxppo import learner
    from purejaxppo.agents import diagnostics
    from purejaxppo.agents.policy import Policy
    from purejaxppo.agents.schedules import make_hyperparams

    config, spec, hp = parts.config, parts.env.spec, make_hyperparams(parts.config)
    unscaled = replace(config, ppo=replace(config.ppo, normalize_obs=False))
    bare = Policy(unscaled, spec)
    losses = diagnostics.zero_metrics(()).losses

    def roll(act, state):
        key, now = jax.random.split(state.key)
        acting = parts._replace(act=act)
        rollout = learner.collect(acting, state.agent, state.rollout, now, 0.0)
        return state.replace(rollout=rollout.end, key=key), rollout

    def with_statistics(before):
        state, rollout = roll(parts.act, before)
        reward, reward_stats, carried = learner.scale_rewards(parts, before, rollout, hp)
        stats = learner.update_obs_stats(parts, state.agent.obs_stats, rollout)
        after = state.replace(
            agent=state.agent.replace(obs_stats=stats),
            reward_stats=reward_stats,
            rollout=state.rollout.replace(discounted_return=carried),
        )
        return after, rollout, reward

    def whole(state):
        state, metrics = learner.train_step(parts, state, hp)
        return state, metrics.env_steps, metrics

    def no_update(state):
        after, rollout, reward = with_statistics(state)
        batch = learner.make_batch(parts, state.agent, rollout, reward, hp, state.value_stats)
        metrics = diagnostics.summarise(state.agent, rollout, batch, losses, parts.shards.psum)
        return after, metrics.env_steps, (metrics, batch)

    def no_values(state):
        state, rollout, reward = with_statistics(state)
        rows = rollout.transitions
        return state, jnp.sum(rows.valid), (rows, rollout.episodes, reward)

    def without_episodes(before, state):
        kept = {
            name: getattr(before.rollout, name) for name in ("episode_return", "episode_length")
        }
        return state.replace(rollout=state.rollout.replace(**kept))

    def no_statistics(state):
        after, rollout = roll(bare.act, state)
        rows = rollout.transitions
        return without_episodes(state, after), jnp.sum(rows.valid), rows

    def no_policy(state):
        start = state.replace(rollout=state.rollout.replace(carry=jnp.zeros((), jnp.int32)))
        after, rollout = roll(Replay(actions).act, start)
        after, rows = after.replace(rollout=after.rollout.replace(carry=())), rollout.transitions
        return without_episodes(state, after), jnp.sum(rows.valid), rows

    state = jax.jit(partial(learner.init_state, parts))(jax.random.key(0), 0)

    def stage(program) -> Stage:
        program = jax.jit(program)

        def run(count: int) -> int:
            nonlocal state
            total = 0
            for _ in range(count):
                state, steps, _ = program(state)
                total += int(steps)
            return total

        return run

    state, _, transitions = jax.jit(no_statistics)(state)
    actions = jax.jit(bare.distribution.to_env)(transitions.action)
    return [stage(f) for f in (whole, no_update, no_values, no_statistics, no_policy)], actions


class Replay(NamedTuple):
    """Replaces a policy by stored actions; the carry is the step."""

    actions: Any  # [T, N, ...]

    def act(self, agent: Any, key: Any, carry: Any, obs: Any, start: Any) -> Any:
        """Return the next row of actions, as `Policy.act`."""
        import jax.numpy as jnp

        from purejaxppo.types import PolicyStep

        action = self.actions[carry]
        return PolicyStep(carry + 1, action, jnp.zeros(start.shape), action)


def pool_stage(env: Any, actions: Any) -> Stage:
    """Return the stage of the simulator under its Python API, with the same actions."""
    import numpy as np

    pool = env.pool(env.spec.num_envs)
    if hasattr(pool, "envs"):  # the workers of Gymnasium
        pool.envs.reset(0)
        actions = np.asarray(actions)

        def step(action):
            rows = pool.envs.step(action)
            return rows.terminated | rows.truncated
    else:
        pool.env.reset()
        actions = np.asarray(actions, pool.action_dtype)

        def step(action):
            _, _, terminated, truncated, _ = pool.env.step(action)
            return terminated | truncated

    return ours.stepping(step, actions, env.spec.num_envs)


def row(task: str, rounds: list[list[float]]) -> dict[str, Any]:
    """Return the row of a task: microseconds per environment step, in total and by part."""
    stages = [statistics.median(times) for times in rounds]
    pieces = dict(zip(PIECES, (a - b for a, b in pairwise(stages)), strict=False))
    pieces["simulator"] = stages[-1]
    return {
        "task": task,
        "sizes": TASKS[task],
        "microseconds": stages[0],
        "pieces": [[name, round(value, 3)] for name, value in reversed(pieces.items())],
        "rounds": [[round(t, 3) for t in times] for times in rounds],
    }


def show(row: dict[str, Any]) -> None:
    """Print the parts of a task, in microseconds per environment step and in percent."""
    total = row["microseconds"]
    print(f"\n{row['sizes']['env']}: {total:.2f} microseconds per environment step")
    for name, value in row["pieces"]:
        print(f"{name:22} {value:10.2f} {value / total:7.1%}", flush=True)


if __name__ == "__main__":
    main()
