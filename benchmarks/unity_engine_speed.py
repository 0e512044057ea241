"""Steps per second of the Unity adapter, and of the package mlagents_envs, with one scripted game.

    python benchmarks/unity_engine_speed.py [--rounds 9] [--peer FOLDER]

The game (tests/engines/unity_engine.py) sends the same message of all its agents again and again,
so that the trainer's side is what is measured. Contenders take turns, while the others' games wait:

* rows: our players in a plain Python loop;
* loop: the same rows stepped in a compiled `scan`, which draws its actions;
* mlagents_envs: the Python client of ML-Agents, if --peer names a folder with the package.

Rows go to benchmarks/results/unity_engine_speed.jsonl.
"""

import argparse
import contextlib
import datetime
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machine
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
Run = Callable[[int], None]


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1000, help="of each round")
    parser.add_argument("--peer", help="a folder with the package mlagents_envs")
    args = parser.parse_args()
    if args.peer:
        sys.path.insert(0, args.peer)
    from purejaxppo.parallel.shards import use_cpu_cores

    use_cpu_cores(0, calls_host=True)
    rows = []
    about = {"date": datetime.date.today().isoformat(), **machine.describe()}
    for agents in (1, 8):
        with contenders(agents, peer=bool(args.peer)) as found:
            for run in found.values():
                run(100)
            speeds: dict[str, list[float]] = {name: [] for name in found}
            for _ in range(args.rounds):
                for name, run in found.items():
                    began = time.perf_counter()
                    run(args.steps)
                    speeds[name].append(args.steps / (time.perf_counter() - began))
        for name, each in speeds.items():
            row = {
                "agents": agents,
                "contender": name,
                "steps_per_second": round(statistics.median(each)),
                "range": [round(min(each)), round(max(each))],
            }
            print(row, flush=True)
            rows.append({**row, **about})
    machine.replace_rows(machine.RESULTS / "unity_engine_speed.jsonl", rows, "agents", "contender")


@contextlib.contextmanager
def contenders(agents: int, *, peer: bool) -> Iterator[dict[str, Run]]:
    """Those who take part, each with a game of its own."""
    from support.unity import make_player

    arguments = f"--replay --agents {agents}"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        player = make_player(folder, "Game.x86_64")
        found = {
            "rows": plain(stack, player, arguments),
            "loop": compiled(stack, player, arguments, agents),
        }
        if peer:
            found["mlagents_envs"] = official(stack, player, arguments, agents)
        yield found


def plain(stack: contextlib.ExitStack, player: str, arguments: str) -> Run:
    """Our players, without JAX."""
    from purejaxppo.envs.host.unity.player import Player, PlayerSpec
    from purejaxppo.envs.host.unity.players import Players, probe

    spec = PlayerSpec(player, arguments=arguments)
    one = Player(spec, 0)
    one.connect()
    players = Players(spec, probe(one, {"": 0}), 1, ready=[one])
    stack.callback(players.close)
    players.reset(0)
    actions = random_actions(players.layout.size)

    def run(steps: int) -> None:
        for step in range(steps):
            players.step(actions[step % len(actions)])

    return run


def compiled(stack: contextlib.ExitStack, player: str, arguments: str, agents: int) -> Run:
    """Our rows in a compiled program."""
    import jax

    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry

    options = {"arguments": arguments}
    env = registry.make(EnvConfig(name=f"unity/{player}", num_envs=agents, options=options), agents)
    stack.callback(env.close)

    def step(state: Any, key: Any) -> tuple[Any, Any]:
        action = jax.random.uniform(key, (agents, 2), minval=-1.0, maxval=1.0)
        state, out = env.step(state, action)
        return state, out.reward.sum()

    @jax.jit
    def chunk(state: Any, key: Any) -> Any:
        return jax.lax.scan(step, state, jax.random.split(key, 100))

    state = [jax.jit(env.reset)(jax.random.key(0))[0]]

    def run(steps: int) -> None:
        for number in range(steps // 100):
            state[0], rewards = chunk(state[0], jax.random.key(number))
            rewards.block_until_ready()

    return run


def official(stack: contextlib.ExitStack, player: str, arguments: str, agents: int) -> Run:
    """The package's own environment."""
    from mlagents_envs.base_env import ActionTuple
    from mlagents_envs.environment import UnityEnvironment
    from mlagents_envs.logging_util import ERROR, set_log_level
    from support.ports import free_port

    set_log_level(ERROR)
    env = UnityEnvironment(
        player, no_graphics=True, base_port=free_port(), additional_args=arguments.split()
    )
    stack.callback(env.close)
    env.reset()
    (name,) = env.behavior_specs
    actions = random_actions(agents)

    def run(steps: int) -> None:
        for step in range(steps):
            env.get_steps(name)
            env.set_actions(name, ActionTuple(continuous=actions[step % len(actions)]))
            env.step()

    return run


def random_actions(agents: int) -> list[np.ndarray]:
    """Ready-made random actions."""
    draw = np.random.default_rng(0)
    return [draw.uniform(-1, 1, (agents, 2)).astype(np.float32) for _ in range(100)]


if __name__ == "__main__":
    main()
