"""Training speed of a user's own environment beside the same task built in.

    python benchmarks/own.py [--rounds 40]

CartPole as gymnax has it, and as benchmarks/own_cartpole.py has it (their steps are compared
first), with cartpole.yaml, in turns of about a second. The row goes to
benchmarks/results/own.jsonl, and from there `docs/make_results.py` writes it into
docs/own_code.md.
"""

import argparse
import datetime
import tempfile
from pathlib import Path

import machine
import off

PATH = machine.RESULTS / "own.jsonl"
OWN = Path(__file__).resolve().parent / "own_cartpole.py"
CONFIG = off.ROOT / "configs" / "cartpole.yaml"


def main() -> None:
    """Measures both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own.yaml"
        named = f"name: jax/{OWN}:CartPole"
        own.write_text(CONFIG.read_text().replace("name: gymnax/CartPole-v1", named))
        versions = {
            "built in": off.Version(off.ROOT, str(CONFIG), 0),
            "own": off.Version(off.ROOT, str(own), 0),
        }
        row = off.compare("cartpole.yaml", versions, args.rounds, args.seconds, awake=False)
    check_equal()
    about = {"date": datetime.date.today().isoformat(), **machine.describe()}
    machine.write_rows(PATH, [{"task": "cartpole", **row, **about}])


def check_equal() -> None:
    """Both make the same steps of the same starts."""
    import jax
    import numpy as np
    from own_cartpole import CartPole

    from purejaxppo.config.schema import EnvConfig
    from purejaxppo.envs import registry

    built_in = registry.adapter("gymnax").make("CartPole-v1", EnvConfig(name="gymnax/CartPole-v1"))
    key = jax.random.key(0)
    (state, obs), (own_state, own_obs) = built_in.reset(key), CartPole().reset(key)
    np.testing.assert_array_equal(obs, own_obs)
    for i in range(30):
        state, one = built_in.step(key, state, i % 3 % 2)
        own_state, other = CartPole().step(key, own_state, i % 3 % 2)
        np.testing.assert_allclose(one.obs, other.obs, rtol=1e-4, atol=1e-6)
        assert bool(one.terminated) == bool(other.terminated)


if __name__ == "__main__":
    main()
