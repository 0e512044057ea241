"""Contenders of others: Stable-Baselines3's PPO, SBX's, and a plain PPO in PyTorch on EnvPool.

They may run under another Python than ours; sizes are the flat dict of `ours`.
"""

from typing import Any

import turns

Sizes = dict[str, Any]


def sb3(sizes: Sizes, seconds: float) -> None:
    """Stable-Baselines3 as it is, on one thread: more of them make these sizes slower."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    learn(PPO, sizes, seconds, device="cpu")


def sbx(sizes: Sizes, seconds: float) -> None:
    """SBX as it is: Stable-Baselines3's loop with networks and updates in JAX."""
    import flax.linen as nn
    from sbx import PPO

    learn(PPO, sizes, seconds, activation_fn=nn.tanh)


def learn(kind: Any, sizes: Sizes, seconds: float, device: str = "auto", **policy: Any) -> None:
    """Rounds of `learn`, a rollout and its update at a time, on a DummyVecEnv."""
    from stable_baselines3.common.env_util import make_vec_env

    n, length = sizes["num_envs"], sizes["rollout_length"]
    hidden = list(sizes["hidden"])
    model = kind(
        "MlpPolicy",
        make_vec_env(sizes["env"].partition("/")[2], n, seed=0),
        n_steps=length,
        batch_size=n * length // sizes["num_minibatches"],
        n_epochs=sizes["num_epochs"],
        policy_kwargs={"net_arch": {"pi": hidden, "vf": hidden}, **policy},
        seed=0,
        device=device,
    )

    def run(count: int) -> int:
        before = model.num_timesteps
        model.learn(count * n * length, reset_num_timesteps=False, log_interval=None)
        return model.num_timesteps - before

    turns.rounds(run, seconds)


def torch_ppo(sizes: Sizes, seconds: float) -> None:
    """PPO of the Atari papers in PyTorch on EnvPool's own step, images channels last."""
    trainer = TorchPPO(sizes)

    def run(count: int) -> int:
        return sum(trainer.update() for _ in range(count))

    turns.rounds(run, seconds)


def nature_cnn(num_actions: int, width: int) -> Any:
    """Three convolutions and a layer that policy and value share (Mnih et al. 2015)."""
    import torch
    from torch import nn

    def orthogonal(layer: Any, gain: float = 2**0.5) -> Any:
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
        return layer

    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.torso = nn.Sequential(
                *(orthogonal(nn.Conv2d(4, 32, 8, 4)), nn.ReLU()),
                *(orthogonal(nn.Conv2d(32, 64, 4, 2)), nn.ReLU()),
                *(orthogonal(nn.Conv2d(64, 64, 3, 1)), nn.ReLU()),
                *(nn.Flatten(), orthogonal(nn.Linear(3136, width)), nn.ReLU()),
            )
            self.actor = orthogonal(nn.Linear(width, num_actions), 0.01)
            self.critic = orthogonal(nn.Linear(width, 1), 1.0)

        def forward(self, obs: Any) -> tuple[Any, Any]:
            """Images uint8 [B, 4, 84, 84] -> (distribution, value [B])."""
            pixels = obs.to(torch.float32, memory_format=torch.channels_last) / 255.0
            features = self.torso(pixels)
            logits, value = self.actor(features), self.critic(features)[:, 0]
            return torch.distributions.Categorical(logits=logits, validate_args=False), value

    return ActorCritic().to(memory_format=torch.channels_last)


class TorchPPO:
    """The same algorithm, network, optimiser, epochs and minibatches as ours, written plainly."""

    def __init__(self, sizes: Sizes) -> None:
        """Starts environments, network and optimiser."""
        import envpool
        import torch

        torch.manual_seed(0)
        self.sizes, self.torch = sizes, torch
        n, length = sizes["num_envs"], sizes["rollout_length"]
        name = sizes["env"].partition("/")[2]
        self.env = envpool.make(name, env_type="gymnasium", num_envs=n, seed=0)
        self.net = nature_cnn(int(self.env.action_space.n), sizes["hidden"][0])
        self.adam = torch.optim.Adam(self.net.parameters(), sizes["learning_rate"], eps=1e-5)
        self.obs = torch.zeros((length + 1, n, 4, 84, 84), dtype=torch.uint8)
        self.action = torch.zeros((length, n), dtype=torch.int64)
        self.log_prob, self.reward = torch.zeros((length, n)), torch.zeros((length, n))
        self.value, self.done = torch.zeros((length + 1, n)), torch.zeros((length + 1, n))
        self.obs[-1] = torch.from_numpy(self.env.reset()[0])

    def update(self) -> int:
        """One iteration; the steps that were no resets."""
        with self.torch.inference_mode():
            self.collect()
            advantage = self.advantages()
        self.improve(advantage)
        return int((1 - self.done[:-1]).sum())

    def collect(self) -> None:
        """A rollout; `done[t]` says that `obs[t]` is an episode's last."""
        self.obs[0], self.done[0] = self.obs[-1].clone(), self.done[-1].clone()
        for t in range(self.sizes["rollout_length"]):
            distribution, self.value[t] = self.net(self.obs[t])
            action = distribution.sample()
            self.action[t], self.log_prob[t] = action, distribution.log_prob(action)
            obs, reward, terminated, truncated, _ = self.env.step(action.numpy())
            self.obs[t + 1] = self.torch.from_numpy(obs)
            self.reward[t] = self.torch.from_numpy(reward)
            self.done[t + 1] = self.torch.from_numpy(terminated | truncated)
        self.value[-1] = self.net(self.obs[-1])[1]

    def advantages(self) -> Any:
        """Generalised advantage estimates [T, N]."""
        gamma, trace = self.sizes["gamma"], self.sizes["gae_lambda"]
        advantage = self.torch.zeros_like(self.reward)
        last = self.torch.zeros_like(self.reward[0])
        for t in reversed(range(len(self.reward))):
            going = 1 - self.done[t + 1]
            delta = self.reward[t] + gamma * going * self.value[t + 1] - self.value[t]
            advantage[t] = last = delta + gamma * trace * going * last
        return advantage

    def improve(self, advantage: Any) -> None:
        """Epochs of minibatches; rows on which the environment reset itself are left out."""
        torch, sizes = self.torch, self.sizes
        valid = (self.done[:-1] == 0).flatten().nonzero()[:, 0]
        obs, action = self.obs[:-1].flatten(0, 1), self.action.flatten()
        old, advantage = self.log_prob.flatten(), advantage.flatten()
        target = advantage + self.value[:-1].flatten()
        for _ in range(sizes["num_epochs"]):
            order = valid[torch.randperm(len(valid))]
            for rows in order.tensor_split(sizes["num_minibatches"]):
                distribution, value = self.net(obs[rows])
                ratio = (distribution.log_prob(action[rows]) - old[rows]).exp()
                a = advantage[rows]
                a = (a - a.mean()) / (a.std() + 1e-8)
                clipped = ratio.clamp(1 - sizes["clip_eps"], 1 + sizes["clip_eps"])
                loss = (
                    -torch.minimum(ratio * a, clipped * a).mean()
                    + sizes["vf_coef"] * 0.5 * (value - target[rows]).square().mean()
                    - sizes["ent_coef"] * distribution.entropy().mean()
                )
                self.adam.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), sizes["max_grad_norm"])
                self.adam.step()
