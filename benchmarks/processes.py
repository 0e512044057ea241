"""Steps per second of one run in one process and in two, on the cores of one machine.

    python benchmarks/processes.py [--rounds 7] [--updates 60]

hopper.yaml at the sizes of version 0.2, by alternating commands `python -m purejaxppo.train`. The
speed of a command is that of its second half, without compilation. Rows go to
benchmarks/results/processes.jsonl.
"""

import contextlib
import itertools
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import harness

SIZES: dict[str, Any] = {
    "env": "brax/hopper",
    "num_envs": 512,
    "rollout_length": 16,
    "num_minibatches": 32,
    "num_epochs": 8,
    "hidden": (128, 128),
    "activation": "swish",
    "normalize_reward": True,
}
"""Sizes of hopper.yaml in version 0.2, which has no layer normalisation."""
TOY = ["--config", "cartpole", "--env.num_envs", "16", "--ppo.rollout_length", "8"]


class Contender(NamedTuple):
    """The processes and devices of one run."""

    about: str
    processes: int
    devices: int  # of each process


CONTENDERS = {
    "one-device": Contender("one process with one device", 1, 1),
    "two-devices": Contender("one process with two devices", 1, 2),
    "two-processes": Contender("two processes with one device each", 2, 1),
}


def main() -> None:
    """Run the commands of the contenders in alternation."""
    parser = harness.options(__doc__, "processes", rounds=7)
    parser.add_argument("--updates", type=int, default=60, help="updates of each command")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    args = parser.parse_args()
    envs, length = SIZES["num_envs"], SIZES["rollout_length"]
    flags = ["--config", "hopper", "--total_timesteps", str(args.updates * envs * length)]
    flags += ["--env.num_envs", str(envs), "--ppo.rollout_length", str(length)]
    flags += ["--network.no_layer_norm"]
    if args.toy:
        args.rounds, flags = 1, [*TOY, "--total_timesteps", "1024"]
    results = {name: harness.Result([], {}) for name in args.contenders}
    for _, name in itertools.product(range(args.rounds), args.contenders):
        results[name].speeds.append(speed(CONTENDERS[name], flags))
    harness.show("hopper", results, "one-device")
    rows = [
        result.row(contender=name, sizes=SIZES, **CONTENDERS[name]._asdict())
        for name, result in results.items()
    ]
    harness.keep(args, rows, "contender", "device")


def speed(contender: Contender, flags: list[str]) -> float:
    """Return the steps/s of one run in its second half."""
    flags = [*flags, "--devices", str(contender.devices), "--eval.num_episodes", "0"]
    flags += ["--logging.interval", "1", "--logging.no_tensorboard"]
    with contextlib.ExitStack() as stack:
        run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        command = [sys.executable, "-m", "purejaxppo.train", *flags, "--run_dir", str(run_dir)]
        if contender.processes == 1:
            harness.call(command)
        else:
            with socket.create_server(("127.0.0.1", 0)) as server:
                address = f"127.0.0.1:{server.getsockname()[1]}"
            command += ["--coordinator", address, "--num_processes", str(contender.processes)]
            others = [
                subprocess.Popen([*command, "--process_id", str(i)], stdout=subprocess.DEVNULL)
                for i in range(1, contender.processes)
            ]
            for other in others:
                stack.callback(other.wait)
            harness.call([*command, "--process_id", "0"])
        rows = harness.metrics(run_dir)
    first, last = rows[len(rows) // 2 - 1], rows[-1]
    steps, seconds = (last[x] - first[x] for x in ("global_step", "seconds"))
    return steps / seconds


if __name__ == "__main__":
    main()
