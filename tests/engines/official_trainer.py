"""Step a Unity build with the package mlagents_envs, and print its episodes as JSON.

    python official_trainer.py FOLDER_OF_THE_PACKAGE BUILD SEED STEPS PORT [ARGUMENT ...]

For every agent by id, a list of its episodes: their decisions (observation, mask, reward) and their
end. Actions are those of `policy`, which a test also uses.
"""

import json
import sys

import numpy as np


def policy(obs: np.ndarray, branches: int) -> tuple[np.ndarray, np.ndarray]:
    """Return actions for vectors [n, 2]: continuous [n, 2], discrete [n, branches]."""
    continuous = np.stack([obs[:, 0] / 2, obs[:, 1] / 10], axis=1).astype(np.float32)
    return continuous, np.rint(obs[:, 1:] * 10).astype(np.int32)[:, :branches] % 3


def main(folder: str, player: str, seed: int, steps: int, port: int, arguments: list[str]) -> dict:
    """Return the episodes of each agent by id."""
    sys.path.insert(0, folder)
    from mlagents_envs.base_env import ActionTuple
    from mlagents_envs.environment import UnityEnvironment
    from mlagents_envs.logging_util import ERROR, set_log_level

    set_log_level(ERROR)  # it writes to standard output
    env = UnityEnvironment(
        player, seed=seed, no_graphics=True, base_port=port, additional_args=arguments
    )
    seen: dict[int, list[dict]] = {}
    try:
        env.reset()
        for _ in range(steps):
            for name, spec in env.behavior_specs.items():
                asking, over = env.get_steps(name)
                record(seen, name, asking, over)
                if len(asking):
                    size = spec.action_spec.continuous_size
                    branches = spec.action_spec.discrete_size
                    continuous, discrete = policy(asking.obs[0], branches)
                    actions = ActionTuple(continuous=continuous[:, :size], discrete=discrete)
                    env.set_actions(name, actions)
            env.step()
    finally:
        env.close()
    return seen


def record(seen: dict[int, list[dict]], name: str, asking, over) -> None:
    """Add the steps of a behaviour, ends before the decisions of the same message."""
    for i, number in enumerate(over.agent_id):
        reward = float(over.reward[i] + over.group_reward[i])
        end = [over.obs[0][i].tolist(), reward, bool(over.interrupted[i])]
        episode(seen, int(number), name)["end"] = end
    for i, number in enumerate(asking.agent_id):
        masks = asking.action_mask
        allowed = [] if masks is None else [int(not x) for mask in masks for x in mask[i]]
        reward = float(asking.reward[i] + asking.group_reward[i])
        decision = [asking.obs[0][i].tolist(), allowed, reward]
        episode(seen, int(number), name)["decisions"].append(decision)


def episode(seen: dict[int, list[dict]], number: int, name: str) -> dict:
    """Return the current episode of an agent."""
    episodes = seen.setdefault(number, [])
    if not episodes or episodes[-1]["end"]:
        episodes.append({"behaviour": name, "decisions": [], "end": None})
    return episodes[-1]


if __name__ == "__main__":
    numbers = [int(x) for x in sys.argv[3:6]]
    print(json.dumps(main(sys.argv[1], sys.argv[2], *numbers, sys.argv[6:])))
