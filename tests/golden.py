"""Train ten updates of five configs, and compare metrics and parameters bit for bit.

    make golden                      compare this checkout with the stored hashes
    make golden ARGS=--store         store the hashes of this JAX version and processor
    make golden BASE=/path/checkout  run another checkout too, and print every difference

Two checkouts are compared value by value; stored hashes only show which array differs. Bits depend
on the JAX version, on the processor that XLA compiles for and on the number of cores, which are
JAX's devices, so each combination has its own hashes.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "tests/golden.json"
UPDATES = 10
CONFIGS = {
    "cartpole.yaml": {"num_shards": 2},
    "cartpole_hidden.yaml": {"num_shards": 2},
    # The hashes were stored with these sizes and without layer normalisation.
    "hopper.yaml": {
        "num_shards": 2,
        "env.num_envs": 512,
        "network.layer_norm": False,
        "ppo.rollout_length": 16,
    },
    # One shard, as with all host simulators. Version 0.2 evaluates more episodes than
    # env.num_envs = 8 with more simulators, so only 8 have the same numbers.
    # The hashes were stored with constant gamma and without layer normalisation.
    "hopper_v5.yaml": {"eval.num_episodes": 8, "ppo.final_gamma": 0.0, "network.layer_norm": False},
    # The hashes were stored with this rate and these minibatches, and before evaluations had whole
    # environments of several agents.
    "mpe_spread.yaml": {
        "num_shards": 2,
        "eval.num_episodes": 0,
        "ppo.learning_rate": 3e-4,
        "ppo.num_minibatches": 4,
    },
}
"""Changes of each config, by dotted name."""
TIMES = ("seconds", "charts/SPS")
"""Columns of metrics.csv that measure time."""
CURVES = "metrics.csv "
"""Prefix of the names of curves; other arrays are parameters and statistics."""
VECTORS = ("avx512f", "avx2", "avx", "asimd")
"""Processor features that set the width of XLA's vectors, widest first."""

Values = dict[str, np.ndarray]
"""Arrays by name: curves [updates], parameters and statistics of observations."""


def main(words: list[str] | None = None) -> int:
    """Run the command; return 1 if anything differs or cannot be compared."""
    args = parse(words)
    if args.values:
        np.savez(args.values, **train(args.configs[0]))
        return 0
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.is_file() else {}
    key = f"jax {metadata.version('jax')}, {processor()}"
    different = False
    for config in args.configs:
        values = run(ROOT, config)
        if args.base:
            lines = differences(run(args.base.resolve(), config), values)
        elif args.store:
            lines, stored.setdefault(key, {})[config] = [], hashes(values)
        elif config in stored.get(key, {}):
            lines = changed_hashes(stored[key][config], hashes(values))
        else:
            lines = [f"no hashes of {key}. Run make golden ARGS=--store on a commit that is right."]
        different = different or bool(lines)
        for line in lines or ["stored" if args.store else "identical"]:
            print(f"{config}: {line}", flush=True)
    if args.store:
        STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return int(different)


def parse(words: list[str] | None) -> argparse.Namespace:
    """Parse a command line, by default that of this process."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--base", type=Path, help="another checkout to compare with")
    parser.add_argument("--store", action="store_true", help="store the hashes of this checkout")
    parser.add_argument("--configs", nargs="+", default=list(CONFIGS), choices=CONFIGS)
    parser.add_argument("--values", help=argparse.SUPPRESS)  # of `run`
    args = parser.parse_args(words)
    if args.base and not (args.base / "purejaxppo").is_dir():
        parser.error(f"--base {args.base}: not a checkout, it has no folder purejaxppo")
    if args.base and args.store:
        parser.error("--base compares and --store stores. Leave one of them out.")
    return args


def run(checkout: Path, config: str) -> Values:
    """Train a config with another checkout's package, in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "values.npz")
        subprocess.run(
            [sys.executable, "-P", __file__, "--configs", config, "--values", path],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"},
            check=True,
        )
        with np.load(path) as arrays:
            return dict(arrays)


def train(config: str) -> Values:
    """Train a config in the current folder with the package on PYTHONPATH."""
    import jax

    import purejaxppo

    assert Path(purejaxppo.__file__).is_relative_to(os.environ["PYTHONPATH"]), purejaxppo.__file__
    settings = purejaxppo.load_config(config)
    changes = {
        "total_timesteps": UPDATES * settings.env.num_envs * settings.ppo.rollout_length,
        "logging.interval": 1,  # a row for each update
        "eval.num_episodes": 16,
        **CONFIGS[config],
    }
    trained = purejaxppo.train(settings, run_dir="run", quiet=True, **changes)
    curves = {
        CURVES + name: column for name, column in trained.metrics.items() if name not in TIMES
    }
    state = trained.last.state
    arrays = {"params": state.params, "obs_stats": state.obs_stats._asdict()}
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    name = jax.tree_util.keystr
    return curves | {name(path, simple=True, separator="."): np.asarray(x) for path, x in leaves}


def differences(base: Values, new: Values) -> list[str]:
    """Describe each array that differs between two checkouts: its place and difference."""
    lines = [f"{name}: only in BASE" for name in base if name not in new]
    lines += [f"{name}: not in BASE" for name in new if name not in base]
    for name in base:
        if name in new and not _same(base[name], new[name]):
            lines.append(f"{name}: {_difference(name, base[name], new[name])}")
    return lines


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=True)


def _difference(name: str, one: np.ndarray, other: np.ndarray) -> str:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype}{list(one.shape)} in BASE, {other.dtype}{list(other.shape)} here"
    differ = (one != other) & ~(np.isnan(one) & np.isnan(other))
    largest = np.abs(one.astype(np.float64) - other)[differ].max()
    if not name.startswith(CURVES):
        return f"{differ.sum()} of {differ.size} numbers differ, by up to {largest:.3g}"
    first = int(np.argmax(differ))
    return (
        f"{differ.sum()} of {differ.size} updates differ, by up to {largest:.3g}, the first is "
        f"update {first + 1}: {one[first]:.9g} in BASE, {other[first]:.9g} here"
    )


def hashes(values: Values) -> dict[str, str]:
    """Hash each array with its shape and dtype."""
    return {
        name: hashlib.sha256(f"{x.dtype}{x.shape}".encode() + x.tobytes()).hexdigest()[:12]
        for name, x in values.items()
    }


def changed_hashes(stored: dict[str, str], new: dict[str, str]) -> list[str]:
    """List the arrays whose hashes differ from the stored ones, in one line."""
    names = [name for name in {**stored, **new} if stored.get(name) != new.get(name)]
    if not names:
        return []
    return [f"not the stored bits: {', '.join(names)}. Run make golden BASE=/path to see how far"]


def processor() -> str:
    """Return the processor's model, vector width and cores, which compiled programs depend on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    fields = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    features = (fields.get("flags") or fields.get("Features", "")).split()
    known = [fields[x] for x in ("vendor_id", "cpu family", "model") if x in fields]
    vectors = [next((x for x in VECTORS if x in features), "")]
    names = [platform.machine(), *(known or [platform.processor()]), *vectors]
    return f"{' '.join(filter(None, names))}, {cores} cores"


if __name__ == "__main__":
    sys.exit(main())
