"""Compute the reference of `tests/test_sb3_parity.py` with Stable-Baselines3.

    pip install torch stable-baselines3
    python tests/reference/make_sb3_reference.py

writes `sb3.npz` in this folder. Weights are stored in units of 1/64 and their changes in units of
2^-20 (an error of 5e-7) to keep the file small; the reference is computed in float32 from exactly
these weights. All weights of a model are one vector, in the order of `named_parameters`.
"""

import sys
from pathlib import Path

import numpy as np

LENGTH, NUM_ENVS, EPOCHS, MINIBATCHES = 16, 8, 2, 4
GAMMA, GAE_LAMBDA, CLIP, VF_CLIP = 0.97, 0.9, 0.2, 0.1
LEARNING_RATE, VF_COEF, ENT_COEF, MAX_GRAD_NORM = 3e-4, 0.5, 0.01, 0.5
OBS_SIZE, NUM_ACTIONS, ACTION_SIZE = 4, 3, 2
KINDS = ("discrete", "gaussian")
LOSSES = ("policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction")


def rollout(kind: str, rng) -> dict[str, np.ndarray]:
    """Return a random rollout with terminated and truncated episodes."""
    shape = (LENGTH, NUM_ENVS)
    ends = rng.random(shape)
    orders = [rng.permutation(LENGTH * NUM_ENVS) for _ in range(EPOCHS)]
    if kind == "discrete":
        action = rng.integers(0, NUM_ACTIONS, shape).astype(np.int32)
    else:
        action = rng.normal(size=(*shape, ACTION_SIZE)).astype(np.float32)
    return {
        "obs": rng.normal(size=(*shape, OBS_SIZE)).astype(np.float32),
        "action": action,
        "reward": rng.normal(size=shape).astype(np.float32),
        "value": rng.normal(size=shape).astype(np.float32),
        "last_value": rng.normal(size=NUM_ENVS).astype(np.float32),
        "terminal_value": rng.normal(size=shape).astype(np.float32),
        "terminated": ends < 0.1,
        "truncated": ends > 0.9,
        "log_prob_shift": rng.normal(0, 0.2, size=shape).astype(np.float32),
        "orders": np.stack(orders).astype(np.int16),
    }


def make_model(kind: str, vf_clip: float | None, epochs: int, batch_size: int):
    """Return SB3's PPO with separate 64-64 tanh networks."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import configure

    class Spaces(gymnasium.Env):
        """An environment of which only the spaces are used."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS_SIZE,), np.float32)
        action_space = (
            gymnasium.spaces.Discrete(NUM_ACTIONS)
            if kind == "discrete"
            else gymnasium.spaces.Box(-1, 1, (ACTION_SIZE,), np.float32)
        )

        def reset(self, **_):
            return np.zeros(OBS_SIZE, np.float32), {}

    from stable_baselines3.common.vec_env import DummyVecEnv

    model = PPO(
        "MlpPolicy",
        DummyVecEnv([Spaces] * NUM_ENVS),
        learning_rate=LEARNING_RATE,
        n_steps=LENGTH,
        batch_size=batch_size,
        n_epochs=epochs,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP,
        clip_range_vf=vf_clip,
        ent_coef=ENT_COEF,
        vf_coef=VF_COEF,
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs={
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
            "activation_fn": torch.nn.Tanh,
            "optimizer_kwargs": {"eps": 1e-5},
        },
        seed=0,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    return model


def weights(model) -> np.ndarray:
    """Return all weights as one vector."""
    return np.concatenate([p.detach().numpy().ravel() for p in model.policy.parameters()])


def quantise(model) -> None:
    """Add noise to the weights of a model and round them to 1/64, in place."""
    import torch

    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            noisy = parameter + 0.1 * torch.randn(parameter.shape, generator=noise)
            parameter.copy_(torch.round(64 * noisy) / 64)


def fill(model, data: dict[str, np.ndarray]) -> None:
    """Add a rollout to the buffer of SB3, as `collect_rollouts` does."""
    import torch

    buffer = model.rollout_buffer
    buffer.reset()
    start = np.ones(NUM_ENVS, bool)
    for t in range(LENGTH):
        action = data["action"][t]
        with torch.no_grad():
            _, log_prob, _ = model.policy.evaluate_actions(
                torch.as_tensor(data["obs"][t]), torch.as_tensor(action)
            )
        reward = data["reward"][t] + GAMMA * data["terminal_value"][t] * data["truncated"][t]
        buffer.add(
            data["obs"][t],
            action.reshape(NUM_ENVS, -1),
            reward,
            start,
            torch.as_tensor(data["value"][t]),
            log_prob + torch.as_tensor(data["log_prob_shift"][t]),
        )
        start = data["terminated"][t] | data["truncated"][t]
    buffer.compute_returns_and_advantage(torch.as_tensor(data["last_value"]), start)


def train(model, orders) -> np.ndarray:
    """Call SB3's `train` with given orders of rows, and return the means of `LOSSES`."""
    remaining = iter(orders)
    original, np.random.permutation = np.random.permutation, lambda n: next(remaining)
    try:
        model.train()
    finally:
        np.random.permutation = original
    return np.array([model.logger.name_to_value[f"train/{name}"] for name in LOSSES])


def compute() -> dict[str, np.ndarray]:
    """Return all inputs and outputs, by name."""
    rows = LENGTH * NUM_ENVS
    out: dict[str, np.ndarray] = {}
    for kind in KINDS:
        data = rollout(kind, np.random.default_rng(KINDS.index(kind)))
        out |= {f"{kind}/{name}": x for name, x in data.items()}
        for vf_clip in (None, VF_CLIP):
            case = f"{kind}/{'free' if vf_clip is None else 'clipped'}"

            # A pass over all rows in one minibatch: the losses of the first weights.
            model = make_model(kind, vf_clip, 1, rows)
            quantise(model)
            fill(model, data)
            out[f"{case}/losses"] = train(model, [np.arange(rows)])

            # A full update.
            model = make_model(kind, vf_clip, EPOCHS, rows // MINIBATCHES)
            quantise(model)
            fill(model, data)
            buffer, before = model.rollout_buffer, weights(model)
            out |= {
                f"{kind}/before": (64 * before).astype(np.int8),
                f"{kind}/log_prob": buffer.log_probs.copy(),
                f"{kind}/advantage": buffer.advantages.copy(),
                f"{kind}/target": buffer.returns.copy(),
            }
            out[f"{case}/mean_losses"] = train(model, data["orders"])
            out[f"{case}/change"] = np.round((weights(model) - before) * 2**20).astype(np.int16)
    return out


def main() -> None:
    """Write `sb3.npz`, or the file given on the command line."""
    path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("sb3.npz")
    np.savez_compressed(path, **compute())


if __name__ == "__main__":
    main()
