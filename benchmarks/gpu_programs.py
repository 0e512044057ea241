"""`gpu.py --programs`: programs compiled for a GPU without one, and the bounds of their speed.

The CUDA plugin of JAX (`make gpu-compiler`) compiles for the description of an H200 without the
GPU: real sm_90 kernels and their schedule, but no autotuning and no execution. The training of each
case is compiled as by `purejaxppo train`, in its own process, and the kernels of an update are
counted in the optimised program (launches.py). `--cpu` compiles it for a CPU, too. Rows go to
benchmarks/results/gpu_programs.jsonl; docs/make_results.py predicts bounds of steps/s from them.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import harness
import launches

COMPILER = Path(os.environ.get("GPU_COMPILER", harness.ROOT / ".gpu-compiler"))
H200 = """
device_description_str: "NVIDIA H200"
platform_name: "CUDA"
runtime_version { major: 13 }
dnn_version_info { major: 9 minor: 10 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 4800000000000
  device_memory_size: 150000000000
  l2_cache_size: 62914560
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
"""


class Case(NamedTuple):
    """A config with changed settings, and a number of GPUs."""

    config: str
    changes: dict[str, Any] = {}  # noqa: RUF012
    cards: int = 1


CASES = {
    "cartpole": Case("cartpole.yaml"),
    "cartpole, gpu": Case("cartpole.yaml", {"gpu": True}),
    "cartpole, 4 seeds": Case("cartpole.yaml", {"num_seeds": 4}),
    "cartpole, bf16": Case("cartpole.yaml", {"network.compute_dtype": "bfloat16"}),
    "cartpole, 4 cards": Case("cartpole.yaml", {"gpu": True}, 4),
    "cartpole, 4 seeds on 4 cards": Case("cartpole.yaml", {"num_seeds": 4}, 4),
    "gru": Case("cartpole_hidden.yaml"),
    "gru, gpu": Case("cartpole_hidden.yaml", {"gpu": True}),
    "lstm": Case("cartpole_hidden.yaml", {"network.rnn": "lstm"}),
    "mingru": Case("cartpole_hidden.yaml", {"network.rnn": "mingru"}),
    "pendulum": Case("pendulum.yaml"),
    "breakout": Case("minatar_breakout.yaml"),
    "breakout, gpu": Case("minatar_breakout.yaml", {"gpu": True}),
    "hopper": Case("hopper.yaml"),
    "hopper, gpu": Case("hopper.yaml", {"gpu": True}),
    "hopper, 4 cards": Case("hopper.yaml", {}, 4),
    "hopper, gpu, 4 cards": Case("hopper.yaml", {"gpu": True}, 4),
    "ant, gpu": Case("ant.yaml", {"gpu": True}),
    "humanoid, gpu": Case("humanoid.yaml", {"gpu": True}),
    "hopper_mjx": Case("hopper_mjx.yaml"),
    "cartpole_balance": Case("cartpole_balance.yaml"),
    "cartpole_balance, gpu": Case("cartpole_balance.yaml", {"gpu": True}),
    "cheetah_run, gpu": Case("cheetah_run.yaml", {"gpu": True}),
    "particles": Case("particles_spread.yaml"),
    "curious": Case("mountain_car_curious.yaml"),
    "oscillator": Case("oscillator.yaml"),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of compiling."""
    parser.add_argument(
        "--programs", nargs="*", metavar="CASE", help="compile the given cases, or all"
    )
    parser.add_argument("--limit", type=float, default=600, help="time limit of a case in seconds")
    parser.add_argument("--cpu", action="store_true", help="compile training for a CPU, too")
    parser.add_argument("--one", help=argparse.SUPPRESS)


def main(args: argparse.Namespace, script: str) -> int:
    """Compile the cases, and return the exit code."""
    if args.one:
        print("row", json.dumps(count(CASES[args.one], cpu=args.cpu)), flush=True)
        return 0
    if unknown := set(args.programs) - set(CASES):
        sys.stderr.write(f"--programs {min(unknown)}: unknown case. Cases: {', '.join(CASES)}.\n")
        return 2
    if not (COMPILER / "jax_plugins").is_dir():
        sys.stderr.write(f"{COMPILER} has no compiler for GPUs. Run: make gpu-compiler\n")
        return 2
    if args.results.name == "gpu.jsonl":
        args.results = args.results.with_name("gpu_programs.jsonl")
    failed = 0
    for name in args.programs or CASES:
        row = {"case": name, **in_process(name, args, script)}
        failed += "failed" in row
        print(json.dumps(row), flush=True)
        if "failed" not in row:
            harness.keep(args, [row], "case")
    return 1 if failed else 0


def in_process(name: str, args: argparse.Namespace, script: str) -> dict[str, Any]:
    """Compile a case in its own process, and return its row or the error."""
    command = [sys.executable, script, "--one", name, *["--cpu"] * args.cpu]
    changed = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_DISABLE_MOST_OPTIMIZATIONS")
    env = {key: x for key, x in os.environ.items() if key not in changed}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=args.limit, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not compiled after {args.limit:.0f} s"}
    rows = [x for x in done.stdout.splitlines() if x.startswith("row ")]
    if rows:
        return json.loads(rows[-1].removeprefix("row "))
    log = [x for x in done.stderr.strip().splitlines() if not re.match(r"[IW]\d{4} ", x)]
    return {"failed": (log or ["no output"])[-1]}


def count(case: Case, *, cpu: bool) -> dict[str, Any]:
    """Compile the training of a case for the GPU, and count its kernels."""
    sys.path.append(str(COMPILER))  # after installed packages
    import jax

    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    from purejaxppo.config.files import for_platform, load_config
    from purejaxppo.runs.programs import Programs
    from purejaxppo.setup import divide, resolve, resolve_shards

    cards = topologies.get_topology_desc(
        platform="cuda", target_config=H200, topology=f"1x1x{case.cards}"
    ).devices
    changes = dict(case.changes)
    sized = changes.pop("gpu", False)
    config = for_platform(load_config(case.config, changes), "gpu" if sized else "cpu")
    config = resolve_shards(config, case.cards, "gpu")
    programs = Programs(divide(resolve(config), cards))
    found: dict[str, Any] = {
        "config": case.config,
        "changes": case.changes,
        "cards": programs.shards.num_devices,
        "jax": jax.__version__,
        "shards": config.num_shards,
        "env": config.env.name,
        "num_envs": config.env.num_envs,
        "rnn": config.network.rnn,
        "minibatches": config.ppo.num_minibatches,
        "epochs": config.ppo.num_epochs,
        "steps_per_update": programs.steps_per_update,
    }
    started, spent = time.perf_counter(), cpu_seconds()
    programs.compile(shapes_on_gpus(programs))
    spent = cpu_seconds() - spent
    program = launches.Program(programs.train_chunk.as_text())
    memory = programs.train_chunk.memory_analysis()
    found["train"] = {
        **program.total._asdict(),
        "kernels": program.turn(0),
        "bytes": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        "instructions": sum(map(len, program.found.values())),
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(spent, 1),
    }
    steps = config.ppo.num_epochs, config.ppo.num_minibatches
    found["gradient_step"] = program.turn(*[x for x in steps if x > 1])
    found["joined_sums"] = program.joined_sums()
    if cpu:
        here = Programs(divide(resolve(config), jax.devices("cpu")[:1]))
        spent = cpu_seconds()
        here.compile(here.abstract_state())
        found["train_on_cpu"] = {"cpu_seconds": round(cpu_seconds() - spent, 1)}
    return found


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its child processes."""
    used = [resource.getrusage(x) for x in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(x.ru_utime + x.ru_stime for x in used)


def shapes_on_gpus(programs: Any) -> Any:
    """Return the shapes of a state on the GPUs."""
    import jax

    from purejaxppo.parts import STATE_AXES

    one = jax.sharding.SingleDeviceSharding(programs.setup.devices[0])
    where = programs.shards.shardings(STATE_AXES) or one

    def shapes(where: Any, part: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), part)

    return jax.tree.map(shapes, where, programs.abstract_state())
