"""Peak memory of runs of different lengths, which must not increase with total_timesteps.

    python benchmarks/memory.py [--tasks cartpole seeds pixels windows]

Each run is a separate process: the command `python -m purejaxppo.train`, and `make_train` with
four vmapped seeds; then the command with 16 seeds, and on images, by the number of environments.
Rows go to benchmarks/results/memory.jsonl.

`windows`: one update of 1,024 oscillator ensembles of 100 neurons, whose observations are windows
of 250 values, over rollouts of different lengths: with the series stored, as in training, and with
every window stored. Minibatches have the same size in all. Rows go to
benchmarks/results/memory_windows.jsonl.
"""

import os
import sys
import tempfile

import harness

SEEDS = """
import sys, jax, resource
from purejaxppo import load_config, make_train
config = load_config("cartpole.yaml", {"total_timesteps": int(sys.argv[1])})
train = jax.jit(jax.vmap(make_train(config)))
jax.block_until_ready(train(jax.random.split(jax.random.key(0), 4)))
"""
WINDOWS = """
import sys, jax
from purejaxppo import load_config
from purejaxppo.agents.obs_storage import FullObs
from purejaxppo.agents.schedules import make_hyperparams
from purejaxppo.parts import init_program, make_parts, shard_ids, train_program
length = int(sys.argv[1])
config = load_config("oscillator.yaml", {
    "env.num_envs": 1024, "env.options": {"num_neurons": 100}, "ppo.rollout_length": length,
    "ppo.num_minibatches": length // 8})
parts = make_parts(config)
if sys.argv[2] == "windows":
    parts = parts._replace(storage=FullObs())
state = jax.jit(init_program(parts))(jax.random.key(0), shard_ids(parts))
train = jax.jit(train_program(parts), donate_argnums=0)
jax.block_until_ready(train(state, make_hyperparams(config), 1))
"""
LENGTHS = (64, 256, 1024)
SEEDS_OF_FOUR = "--env.num_envs 4 --ppo.rollout_length 128 --config cartpole --num_seeds 16"
PIXELS = (
    "--env.name dummy/pixels --network.torso shared --eval.num_episodes 0 --ppo.num_epochs 1 "
    "--env.num_envs {n} --ppo.num_minibatches {minibatches}"
)
TASKS = ("cartpole", "seeds", "pixels", "windows")


def main() -> None:
    """Measure 1x, 4x and 20x the steps, numbers of environments, or lengths of rollouts."""
    parser = harness.options(__doc__, "memory")
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps at 1x")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    args = parser.parse_args()
    if args.toy:
        args.steps = 2048
    rows = []
    for what, steps, words in runs(args.tasks, args.steps, toy=args.toy):
        with tempfile.TemporaryDirectory() as folder:
            run = ["--run_dir", f"{folder}/run"] if words[0] == "-m" else []
            megabytes = round(peak([*words, *run]))
        print(f"{what:16} {steps:>10,} steps {megabytes:7,} MB", flush=True)
        rows.append({"what": what, "steps": steps, "peak_mb": megabytes})
    if rows:
        harness.keep(args, rows, "what", "steps")
    if "windows" in args.tasks:
        args.results = args.results.with_name("memory_windows.jsonl")
        harness.keep(args, windows(LENGTHS[:1] if args.toy else LENGTHS), "kept", "length")


def runs(tasks: list[str], steps: int, *, toy: bool) -> list[tuple[str, int, list[str]]]:
    """Return (label, environment steps, arguments of Python) of each run."""
    found = []
    for times in (1, 4, 20) if "cartpole" in tasks else ():
        n = times * steps
        found.append(("train", n, train("--config cartpole", n)))
        found.append(("vmap of 4", n, ["-c", SEEDS, str(n)]))
    for times in (1, 20) if "seeds" in tasks else ():
        n = times * steps
        found.append(("train, 16 seeds", n, train(SEEDS_OF_FOUR, n)))
    for num_envs in (8, 64) if "pixels" in tasks else ():
        # Two rollouts of num_envs x 128 images of 84 x 84 x 4 bytes.
        n, flags = 2 * 128 * num_envs, PIXELS.format(n=num_envs, minibatches=num_envs // 2)
        found.append((f"pixels, {num_envs} envs", n, train(flags, n)))
    return found[:1] if toy else found


def train(flags: str, steps: int) -> list[str]:
    """Return the arguments of Python for a training."""
    return ["-m", "purejaxppo.train", *flags.split(), "--total_timesteps", str(steps)]


def windows(lengths: tuple[int, ...]) -> list[harness.Row]:
    """Measure one update with rollouts that store windows or their series."""
    rows = []
    for length in lengths:
        for kept in ("windows", "series"):
            megabytes = round(peak(["-c", WINDOWS, str(length), kept]))
            print(f"{kept:8} {length:5} steps  {megabytes:7,} MB", flush=True)
            rows.append({"kept": kept, "length": length, "peak_mb": megabytes})
    return rows


def peak(arguments: list[str]) -> float:
    """Return the peak memory of a Python process with these arguments, in MB."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
        "stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    # Compilation needs memory: all runs compile, and not only the first.
    env = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    out = harness.call([sys.executable, "-c", code, sys.executable, *arguments], env=env)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return int(out.split()[-1]) / unit


if __name__ == "__main__":
    main()
