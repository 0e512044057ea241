"""Every kind of policy with every kind of action and every family of simulators, for real.

    python benchmarks/policies.py [--families xminigrid craftax] [--actions masked]

Each cell is a learner: two updates without a learning rate, in which every probability ratio has to
be 1; updates whose losses have to be finite; and the same from a state that went through the host's
memory half-way, which has to be equal bit for bit (simulators on the host go on with the agent
alone: there it has to be finite again). Rows go to benchmarks/results/policies.jsonl;
`docs/make_results.py` writes the table of docs/policies.md from them.
"""

import argparse
import datetime
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine

MEMORIES = ("none", "gru", "lstm", "mingru")
GAME = Path(__file__).resolve().parents[1] / "tests/engines/godot_game.py"
"""A scripted game in place of Godot's engine."""
SPARSE = "--agents 2 --period 3 --offset 1 --stagger 2"
"""A scripted game of Unity's agents, who ask for decisions in turns."""


def godot(arguments: str) -> dict[str, Any]:
    """A cell of the scripted game in place of Godot's engine."""
    return {"env.name": f"godot/{GAME}", "env.options": {"arguments": arguments}}


def unity(arguments: str) -> dict[str, Any]:
    """A cell of the scripted game in place of a Unity player, which `main` names.

    A decision that is open when a rollout ends keeps the log-probability that it was made with, and
    so with statistics of observations that are a rollout old: without them ratios are exactly 1.
    """
    options = {"arguments": f"{SPARSE} {arguments}", "max_agents": 2}
    return {"env.options": options, "ppo.normalize_obs": False}


CHOICES = {"env.name": "dummy/choices", "env.max_episode_steps": 7}
CELLS: dict[tuple[str, str], dict[str, Any]] = {
    ("dummy", "discrete"): CHOICES,
    ("dummy", "multidiscrete"): {**CHOICES, "env.options": {"kind": "multidiscrete"}},
    ("dummy", "gaussian"): {**CHOICES, "env.options": {"kind": "box"}},
    ("dummy", "tanh_gaussian"): {**CHOICES, "env.options": {"kind": "box"}},
    ("dummy", "beta"): {**CHOICES, "env.options": {"kind": "box"}},
    ("dummy", "hybrid"): {**CHOICES, "env.options": {"kind": "hybrid"}},
    ("dummy", "masked"): {**CHOICES, "env.options": {"kind": "masked"}},
    ("gymnax", "discrete"): {"env.name": "gymnax/CartPole-v1"},
    ("gymnax", "gaussian"): {"env.name": "gymnax/Pendulum-v1"},
    ("gymnax", "tanh_gaussian"): {"env.name": "gymnax/Pendulum-v1"},
    ("gymnax", "beta"): {"env.name": "gymnax/Pendulum-v1"},
    ("brax", "gaussian"): {"env.name": "brax/inverted_pendulum", "env.backend": "spring"},
    ("brax", "beta"): {"env.name": "brax/inverted_pendulum", "env.backend": "spring"},
    ("playground", "gaussian"): {"env.name": "playground/CartpoleBalance"},
    ("oscillator", "gaussian"): {
        "env.name": "oscillator/bvdp",
        "env.options": {"num_neurons": 20, "history": 10, "warmup": 10},
    },
    ("particles", "discrete"): {"env.name": "particles/spread", "env.num_envs": 12},
    ("craftax", "discrete"): {"env.name": "craftax/Craftax-Classic-Symbolic-v1"},
    ("xminigrid", "discrete"): {
        "env.name": "xminigrid/MiniGrid-DoorKey-5x5",
        "env.options": {"direction": True, "pocket": True},
    },
    ("jaxmarl", "discrete"): {"env.name": "jaxmarl/MPE_simple_spread_v3", "env.num_envs": 12},
    ("jaxmarl", "masked"): {"env.name": "jaxmarl/SMAX-3m", "env.num_envs": 12},
    ("jumanji", "masked"): {"env.name": "jumanji/Snake-v1"},
    ("jumanji", "multidiscrete"): {"env.name": "jumanji/Connector-v3"},
    ("pgx", "discrete"): {"env.name": "pgx/minatar-breakout"},
    ("pgx", "masked"): {"env.name": "pgx/tic_tac_toe"},
    ("envpool", "discrete"): {"env.name": "envpool/CartPole-v1"},
    ("envpool", "gaussian"): {"env.name": "envpool/Pendulum-v1"},
    ("envpool", "beta"): {"env.name": "envpool/Pendulum-v1"},
    ("gymnasium", "discrete"): {"env.name": "gymnasium/CartPole-v1"},
    ("gymnasium", "gaussian"): {"env.name": "gymnasium/Pendulum-v1"},
    ("godot", "discrete"): godot("--actions=discrete"),
    ("godot", "multidiscrete"): godot("--actions=pair"),
    ("godot", "gaussian"): godot("--actions=continuous"),
    ("godot", "tanh_gaussian"): godot("--actions=continuous"),
    ("godot", "beta"): godot("--actions=continuous"),
    ("godot", "hybrid"): godot("--actions=mixed --obs=parts"),
    ("godot", "masked"): godot("--actions=discrete --obs=masked"),
    ("pettingzoo", "discrete"): {
        "env.name": "pettingzoo/mpe2.simple_spread_v3",
        "env.num_envs": 12,
    },
    ("unity", "discrete"): unity("--actions discrete"),
    ("unity", "multidiscrete"): unity("--actions branches"),
    ("unity", "gaussian"): unity("--actions continuous"),
    ("unity", "tanh_gaussian"): unity("--actions continuous"),
    ("unity", "beta"): unity("--actions continuous"),
    ("unity", "hybrid"): unity("--actions hybrid --masks"),
    ("unity", "masked"): unity("--actions discrete --masks"),
}
SMALL = {
    "env.num_envs": 4,
    "network.hidden": [8],
    "network.rnn_size": 6,
    "ppo.rollout_length": 12,
    "ppo.num_minibatches": 2,
    "ppo.num_epochs": 2,
    "ppo.bptt_length": 4,
    "num_shards": 1,
    "total_timesteps": 1000,
}


def main() -> None:
    """Runs every cell whose simulator is installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="+", help="some of them; all by default")
    parser.add_argument("--actions", nargs="+", help="some kinds; all by default")
    args = parser.parse_args()
    import jax

    from purejaxppo.envs.registry import FAMILIES

    target = machine.RESULTS / "policies.jsonl"
    for (family, action), settings in CELLS.items():
        if importlib.util.find_spec(FAMILIES[family].requires) is None:
            continue
        if family not in (args.families or [family]) or action not in (args.actions or [action]):
            continue
        for memory in MEMORIES:
            with tempfile.TemporaryDirectory() as folder:
                player = {"env.name": scripted_player(folder)} if family == "unity" else {}
                found = run_cell(settings | player, memory, action)
            row = {"family": family, "action": action, "memory": memory, **found}
            print(row, flush=True)
            row |= {"date": datetime.date.today().isoformat(), **machine.describe()}
            machine.replace_rows(target, [row], "family", "action", "memory")
            jax.clear_caches()


def scripted_player(folder: str) -> str:
    """A Unity player's name: the scripted game as an executable in a folder."""
    sys.path.insert(0, str(GAME.parents[1]))
    from support.unity import make_player

    return f"unity/{make_player(Path(folder))}"


def run_cell(settings: dict[str, Any], memory: str, action: str) -> dict[str, bool | None]:
    """Whether losses were finite, ratios 1, and resumed results the same (None: not restorable)."""
    import jax
    import jax.numpy as jnp

    from purejaxppo.agents.distributions import CONTINUOUS
    from purejaxppo.agents.schedules import make_hyperparams
    from purejaxppo.config.files import apply_overrides, from_dict
    from purejaxppo.parts import init_program, make_parts, shard_ids, train_program

    chosen = {**SMALL, "network.rnn": memory, **settings}
    if action in CONTINUOUS:
        chosen["network.distribution"] = action
    config = from_dict(apply_overrides({}, chosen))
    parts = make_parts(config)
    try:
        hp, chunk = make_hyperparams(config), jax.jit(train_program(parts))
        begun = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
        still = hp._replace(learning_rate=jnp.zeros(()))
        _, metrics = chunk(begun, still, jnp.int32(2))
        ratios = float(metrics.losses.approx_kl) < 1e-9 and float(metrics.losses.clipfrac) == 0
        half, _ = chunk(begun, hp, jnp.int32(1))
        resumed, again = chunk(jax.device_get(half), hp, jnp.int32(1))
        finite = all(bool(jnp.isfinite(x)) for x in jax.tree.leaves(again.losses))
        if not parts.env.spec.restorable:
            return {"finite": finite, "ratios": ratios, "resumed": None}
        whole, _ = chunk(begun, hp, jnp.int32(2))
        same = all(
            bool(jnp.all(a == b))
            for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True)
        )
        return {"finite": finite, "ratios": ratios, "resumed": same}
    finally:
        parts.env.close()


if __name__ == "__main__":
    main()
