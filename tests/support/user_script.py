"""A user's script that uses every public name, with annotations that `mypy --strict` accepts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import purejaxppo as ppo


class Walk:
    """A point on a line: action 1 moves it up by `size`, action 0 down."""

    observation = ppo.Box((1,))
    action = ppo.Discrete(2)
    max_episode_steps = 20
    cheap_reset = True

    def __init__(self, size: float = 0.5) -> None:
        self.size = size

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        position = jax.random.uniform(key, (1,), minval=-1.0)
        return position, position

    def step(
        self, key: jax.Array, state: jax.Array, action: jax.Array
    ) -> tuple[jax.Array, ppo.TaskStep]:
        state = state + self.size * (2.0 * action - 1.0)
        return state, ppo.TaskStep(state, state[0], state[0] > 3.0, jnp.array(False))


class Pair:
    """Two agents that see a number and press a button each."""

    agents: tuple[str, ...] = ("first", "second")
    observation = (ppo.Box((1,)), ppo.Box((1,)))
    action = (ppo.Discrete(2), ppo.Discrete(3))
    max_episode_steps = 5
    cheap_reset = True

    def reset(self, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        number = jax.random.uniform(key, (1,))
        return number, (number, number)

    def step(
        self, key: jax.Array, state: jax.Array, action: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, ppo.MultiStep]:
        gone = jnp.zeros(2, bool)
        return state, ppo.MultiStep((state, state), jnp.ones(2), gone, jnp.array(False))


class Scaled(ppo.Wrapper):
    """Rewards divided by 10."""

    def step(self, key: jax.Array, state: Any, action: Any) -> tuple[Any, ppo.TaskStep]:
        state, out = self.task.step(key, state, action)
        return state, out._replace(reward=out.reward / 10.0)


def objective(log_ratio: jax.Array, advantage: jax.Array, hp: ppo.Hyperparams) -> jax.Array:
    return -jnp.minimum(jnp.exp(log_ratio), 1.0 + hp.clip_eps) * advantage


class Sum:
    """A torso in plain JAX."""

    def init(self, key: jax.Array, obs: jax.Array) -> jax.Array:
        return jax.random.normal(key, (obs.shape[-1], 4))

    def apply(self, params: jax.Array, obs: jax.Array) -> jax.Array:
        return jnp.tanh(obs @ params)


def torso(config: Any) -> ppo.Torso:
    return ppo.Torso(actor=Sum(), critic=Sum())


def unit_normal(size: int) -> ppo.Distribution:
    def log_prob(mean: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.sum(-0.5 * jnp.square(action - mean) - 0.5 * jnp.log(2 * jnp.pi), -1)

    return ppo.Distribution(
        num_params=size,
        sample=lambda mean, key: mean + jax.random.normal(key, mean.shape),
        mode=lambda mean: mean,
        log_prob=log_prob,
        entropy=lambda mean: jnp.full(mean.shape[:-1], size * 1.4),
        to_env=lambda action: action,
        from_env=lambda action: action,
    )


def mean_feature(outputs: Any, rows: Any) -> jax.Array:
    return jnp.square(jnp.mean(outputs.features, -1))


def bonus(config: ppo.Config, spec: Any) -> ppo.Intrinsic:
    def update(
        state: jax.Array, rows: Any, key: jax.Array, psum: Any
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        return state + 1, {}

    return ppo.Intrinsic(
        init=lambda key: jnp.int32(0),
        reward=lambda state, rows: jnp.where(rows.valid, 0.1, 0.0),
        update=update,
    )


class Watch(ppo.Callback):
    """Stop when the return passes 100."""

    def on_evaluation(self, context: ppo.CallbackContext) -> dict[str, float]:
        best = max(row["eval/return_mean"] for row in context.rows)
        if best > 100.0:
            context.stop("good enough")
        return {"mine/best": best}


class Lines(ppo.Logger):
    """Writes returns to a file."""

    def start(self, context: ppo.LoggerContext) -> None:
        self.path = context.run_dir / "returns.log"

    def metrics(self, row: Mapping[str, float], step: int) -> None:
        with self.path.open("a") as file:
            print(step, row.get("eval/return_mean"), file=file)


def change(parts: ppo.Parts) -> ppo.Parts:
    update = ppo.Learner(parts.learner.learn, metric_names=parts.learner.metric_names)
    return parts._replace(objective=parts.objective, learner=update)


TASK: ppo.Task = Walk()
TEAM: ppo.MultiTask = Pair()
SPACE = ppo.Dict((("position", ppo.Box((3,))), ("kinds", ppo.MultiDiscrete((4, 2)))))
SMALL: dict[str, Any] = {
    "env": {"num_envs": 4},
    "network": {"hidden": [8]},
    "ppo": {"rollout_length": 8, "num_minibatches": 2, "num_epochs": 1},
    "eval": {"num_episodes": 2},
    "logging": {"tensorboard": False},
    "total_timesteps": 64,
    "num_shards": 1,
}


def runs(folder: Path) -> ppo.Run:
    """Train, load, evaluate, plot, export and save."""
    config: ppo.Config = ppo.load_config("cartpole.yaml", SMALL, seed=1)
    run: ppo.Run = ppo.train(
        config,
        env=Walk,
        run_dir=folder / "run",
        callbacks=[Watch],
        loggers=[Lines],
        parts=change,
        quiet=True,
        clobber=True,
        ppo={"gamma": 0.98},
    )
    returns: np.ndarray = run.metrics["eval/return_mean"]
    run.metrics.to_pandas().to_csv(folder / "metrics.csv")
    print(run, run.metrics, returns.max(), run.score, run.checkpoints, run.members)
    run.plot("losses/entropy", axes=run.plot().axes[0], label="entropy").savefig(folder / "c.png")
    evaluation: ppo.Evaluation = ppo.evaluate(run, episodes=3, seed=1, deterministic=True)
    print(evaluation, evaluation.score, evaluation.returns.mean())
    print(ppo.video(run, folder / "episode.gif", seed=1))
    print(ppo.export(run.last, folder / "policy.npz", force=True).difference)
    agent: ppo.Agent = run.agent(run.checkpoints[-1])
    agent.save(folder / "walk.agent")
    again = ppo.Agent.load(folder / "walk.agent", env=Walk())
    again.reset()
    print(again.act([0.5], deterministic=True), ppo.restore(run.run_dir).env_steps)
    return ppo.load(run.run_dir)


def sweeps(folder: Path) -> ppo.Sweep:
    """Sweep, and read the table."""
    table: ppo.Sweep = ppo.sweep(
        ppo.load_config("cartpole.yaml", SMALL),
        env=Walk,
        grid={"ppo": {"learning_rate": [1e-3, 1e-2]}},
        run_dir=folder / "sweep",
        quiet=True,
        num_seeds=2,
    )
    best: ppo.Setting = table.best
    agents: list[ppo.Agent] = best.agents
    print(table, best.settings, best.config.ppo.gamma, best.scores.mean(), best.seeds, agents)
    print(len(table), [setting.score for setting in table], best.best.act([0.5]), best.ci95)
    table.to_pandas().to_csv(folder / "table.csv")
    table.plot().savefig(folder / "sweep.png")
    table.plot("eval/return_mean").savefig(folder / "curves.png")
    print(table.metrics["ppo.learning_rate"].mean())
    return ppo.Sweep(table.run_dir)


def pure() -> ppo.Curves:
    """Train as a pure function."""
    config = ppo.load_config("cartpole.yaml", SMALL).replace(ppo={"objective": objective})
    train = ppo.make_train(config, env=TASK, num_points=2)
    hp: ppo.Hyperparams = ppo.hyperparams(config, learning_rate=jnp.array([1e-4, 1e-3]))
    vmapped: Callable[..., ppo.TrainResult] = jax.jit(jax.vmap(train))
    result = vmapped(jax.random.split(jax.random.key(0), 2), hp)
    print(result.seed(1).curves.episodic_return)
    return result.curves


def times(folder: Path) -> ppo.Anatomy:
    """Measure where the time of training goes."""
    result: ppo.Anatomy = ppo.anatomy("cartpole.yaml", quiet=True, seconds=5.0, **SMALL)
    print(result, result.changes, result.config.env.name, result.steps_per_update)
    return result


def custom(folder: Path) -> list[ppo.Config]:
    """Make configs of the other custom code of this file."""
    small = ppo.load_config("cartpole.yaml", **SMALL)
    return [
        small.replace(env={"name": TASK, "wrappers": [Scaled]}),
        small.replace(env={"name": TEAM}),
        small.replace(network={"torso": torso, "distribution": unit_normal}),
        small.replace(ppo={"terms": [ppo.AuxiliaryLoss(mean_feature, name="mean")]}),
        small.replace(intrinsic={"kind": bonus}),
    ]


def main(folder: Path) -> None:
    """Run everything."""
    runs(folder), sweeps(folder), pure(), times(folder), custom(folder)


if __name__ == "__main__":
    main(Path())
