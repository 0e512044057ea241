"""Record trainings of Stable-Baselines3, the reference of `tests/test_sb3_parity.py`.

    pip install torch stable-baselines3 'gymnasium[mujoco]'
    python tests/reference/record_sb3_training.py

writes `sb3_training.npz` in this folder: ten updates of SB3's `learn` on Hopper-v5 and on
CartPole-v1, in float32, with the networks, collector, buffer and order of rows of SB3.
Axes: U updates, T steps, N environments, E epochs, P parameters. Per task:

    params          [U + 1, P]   before the first and after every update, as one vector in the
                                 order of `named_parameters`
    obs, action     [U, T, N, ...]  observed and sampled by the policy
    log_prob, reward  [U, T, N]  the reward of the environment, without a bootstrap
    terminated, truncated  [U, T, N]  an end by the task, and by the time limit
    terminal_obs    [U, T, N, ...]  the last observation of an episode that ended here, else 0
    last_obs        [U, N, ...]  the observation after the last step
    advantage       [U, T, N]    of SB3's buffer, before normalisation
    order           [U, E, T N]  SB3's rows (environment by environment) in the order of each epoch
    losses          [U, 4]       `LOSSES`, each a mean over the gradient steps of the update
"""

import sys
from pathlib import Path

import numpy as np

UPDATES, NUM_ENVS, EPOCHS, MINIBATCHES = 10, 4, 10, 4
GAMMA, GAE_LAMBDA, CLIP = 0.99, 0.95, 0.2
LEARNING_RATE, VF_COEF, ENT_COEF, MAX_GRAD_NORM, ADAM_EPS = 3e-4, 0.5, 0.01, 0.5, 1e-5
# The time limit is so short that some episodes reach it and others terminate.
TASKS = {
    "hopper": {"id": "Hopper-v5", "max_episode_steps": 20, "length": 64},
    "cartpole": {"id": "CartPole-v1", "max_episode_steps": 20, "length": 32},
}
LOSSES = ("policy_gradient_loss", "value_loss", "entropy_loss", "clip_fraction")


def make_env(task: str):
    """Return SB3's vectorised environments, which record the results of the steps."""
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

    class Recorder(VecEnvWrapper):
        """Records the results of `step`."""

        def __init__(self, venv):
            super().__init__(venv)
            self.steps = []

        def reset(self):
            return self.venv.reset()

        def step_wait(self):
            obs, reward, done, infos = self.venv.step_wait()
            truncated = np.array([info["TimeLimit.truncated"] for info in infos])
            ends = [info.get("terminal_observation", np.zeros_like(obs[0])) for info in infos]
            self.steps.append(
                {
                    "reward": reward.copy(),  # SB3 adds the bootstrap in place
                    "terminated": done & ~truncated,
                    "truncated": truncated,
                    "terminal_obs": np.stack(ends).astype(np.float32),
                }
            )
            return obs, reward, done, infos

    def make():
        limit = TASKS[task]["max_episode_steps"]
        return gymnasium.make(TASKS[task]["id"], max_episode_steps=limit)

    return Recorder(DummyVecEnv([make] * NUM_ENVS))


def make_model(task: str, records: list):
    """Return SB3's PPO with separate 64-64 tanh networks, which records updates in `records`."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import configure

    class RecordedPPO(PPO):
        """PPO that records the inputs and outputs of each update."""

        def train(self):
            steps, buffer = self.env.steps, self.rollout_buffer
            record = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
            steps.clear()
            record |= {
                "obs": buffer.observations.astype(np.float32),
                "action": buffer.actions.copy(),
                "log_prob": buffer.log_probs.copy(),
                "advantage": buffer.advantages.copy(),
                "last_obs": self._last_obs.astype(np.float32),
            }
            record["order"] = train_and_list_orders(super().train)
            values = self.logger.name_to_value
            record["losses"] = np.array([values[f"train/{name}"] for name in LOSSES])
            record["params"] = weights(self)
            records.append(record)

    length = TASKS[task]["length"]
    model = RecordedPPO(
        "MlpPolicy",
        make_env(task),
        learning_rate=LEARNING_RATE,
        n_steps=length,
        batch_size=length * NUM_ENVS // MINIBATCHES,
        n_epochs=EPOCHS,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP,
        ent_coef=ENT_COEF,
        vf_coef=VF_COEF,
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs={
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
            "activation_fn": torch.nn.Tanh,
            "optimizer_kwargs": {"eps": ADAM_EPS},
        },
        seed=0,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    return model


def train_and_list_orders(train) -> np.ndarray:
    """Call SB3's `train`, and return its permutations [E, rows]."""
    orders, permutation = [], np.random.permutation

    def listed(n):
        orders.append(permutation(n))
        return orders[-1]

    np.random.permutation = listed
    try:
        train()
    finally:
        np.random.permutation = permutation
    return np.stack(orders).astype(np.uint8)  # at most 256 rows


def weights(model) -> np.ndarray:
    """Return all weights as one vector."""
    return np.concatenate([p.detach().numpy().ravel() for p in model.policy.parameters()])


def compute() -> dict[str, np.ndarray]:
    """Return all records, by task and name."""
    import torch

    torch.set_num_threads(1)  # for a single order of sums; networks of this size are not slower
    out: dict[str, np.ndarray] = {}
    for task, settings in TASKS.items():
        records: list[dict[str, np.ndarray]] = []
        model = make_model(task, records)
        before = weights(model)
        model.learn(UPDATES * settings["length"] * NUM_ENVS)
        assert len(records) == UPDATES
        columns = {name: np.stack([r[name] for r in records]) for name in records[0]}
        columns["params"] = np.concatenate([before[None], columns["params"]])
        if task == "cartpole":
            columns["action"] = columns["action"][..., 0].astype(np.int8)
        out |= {f"{task}/{name}": column for name, column in columns.items()}
    return out


def main() -> None:
    """Write `sb3_training.npz`, or the file given on the command line."""
    path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("sb3_training.npz")
    np.savez_compressed(path, **compute())


if __name__ == "__main__":
    main()
