"""Run all measurements of a GPU with one command, or compile programs for a GPU without one.

    python benchmarks/gpu.py --budget 540              # run again to continue
    python benchmarks/gpu.py --programs [cartpole gru ...] [--cpu]

Items run in the order of their value, each in a process with a time limit, and append each row to
benchmarks/results/gpu.jsonl when it is measured. Stored rows are not measured again, and an item
that reached its time limit is not repeated. With `--jobs N` their programs are compiled before,
in N processes, into the cache that the measurements read; rows without times are then measured,
too. `--list` prints the items (gpu_items.py, gpu_runs.py). `--programs`
needs no GPU: see gpu_programs.py.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpu_items
import gpu_programs
import harness
from gpu_items import ITEMS

TOY_ITEMS = ["machine", "cartpole"]
TOY_SECONDS = 600.0
"""Time limit of an item of a toy run, in seconds."""
SHARE = 0.5
"""The part of the budget after which `--jobs` starts no further row."""
LAST_SECONDS = 60.0
"""Seconds to finish rows that are being compiled at that time."""


def main() -> int:
    """Run all items, run one item in this process, or compile programs."""
    parser = harness.options(__doc__, "gpu")
    parser.add_argument("--budget", type=float, default=540, help="seconds for all items")
    parser.add_argument("--items", nargs="*", choices=ITEMS, metavar="ITEM", help="all by default")
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile beforehand")
    parser.add_argument("--list", action="store_true", help="print the items")
    parser.add_argument("--work", choices=ITEMS, help=argparse.SUPPRESS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    gpu_programs.add_flags(parser)
    args = parser.parse_args()
    if args.list:
        for name, item in ITEMS.items():
            print(f"{name:12} {item.seconds:4.0f} s  {item.about}")
    elif args.work:
        gpu_items.work(args.work, args.results, toy=args.toy, only=args.row)
    elif args.programs is not None or args.one:
        return gpu_programs.main(args, __file__)
    else:
        with tempfile.TemporaryDirectory() as folder:
            if args.toy and args.results == parser.get_default("results"):
                args.results = Path(folder) / "gpu.jsonl"
            run(args)
    return 0


def run(args: argparse.Namespace) -> None:
    """Run items until the budget is used, then print all rows."""
    started = time.monotonic()
    ends = started + args.budget
    items = args.items or (TOY_ITEMS if args.toy else list(ITEMS))
    if args.jobs:
        compile_rows(args, items, started + SHARE * args.budget)
    for name in items:
        done = names_of(args.results, name)
        if "" in done:
            continue  # finished, or stopped by its limit
        left = ends - time.monotonic()
        if left < 10:
            print(f"{name}: no time left", flush=True)
            break
        limit = limit_of(name, args)
        outcome = {"ok": True}
        if set(gpu_items.names(name, toy=args.toy)) - done:
            outcome = run_item(name, args, min(left, limit))
        # An item that only the budget stopped continues in the next call.
        if outcome["ok"] or left >= limit:
            gpu_items.append(args.results, {"item": name, "name": "", **outcome})
    for row in harness.read_rows(args.results):
        print(json.dumps(row))


def limit_of(item: str, args: argparse.Namespace) -> float:
    """Return the time limit of an item in seconds."""
    return TOY_SECONDS if args.toy else ITEMS[item].seconds


def names_of(path: Path, item: str) -> set[str]:
    """Return the names of the rows of an item in a file."""
    return {row["name"] for row in harness.read_rows(path) if row["item"] == item}


def compile_rows(args: argparse.Namespace, items: list[str], begin_by: float) -> None:
    """Measure rows in several parallel processes, and store those without times.

    Rows of programs that were compiled in parallel go to a file `*.compiled.jsonl`: their compile
    seconds are those of an empty cache, and their speeds those of a GPU that others also use.
    """
    compiled = args.results.with_suffix(".compiled.jsonl")

    def one(item: str, row: str, path: Path) -> None:
        left = begin_by - time.monotonic()
        if left > 0:
            seconds = min(limit_of(item, args), left + LAST_SECONDS)
            outcome = run_item(item, args, seconds, "--row", row, results=path)
            print(f"{item}: {row}: {outcome}", flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        for item in items:
            path = compiled if ITEMS[item].timed else args.results
            if ITEMS[item].compiles and "" not in names_of(args.results, item):
                done = names_of(args.results, item) | names_of(path, item)
                for row in gpu_items.names(item, toy=args.toy):
                    if row not in done:
                        pool.submit(one, item, row, path)


def run_item(
    name: str, args: argparse.Namespace, seconds: float, *flags: str, results: Path | None = None
) -> harness.Row:
    """Run an item in a process, and return its outcome."""
    command = [sys.executable, __file__, "--work", name, "--results", str(results or args.results)]
    # Several processes use the GPU: the commands of an item, and those that compile.
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    env |= {"JAX_PLATFORMS": "cpu"} if args.toy else {}
    command += [*flags, *["--toy"] * args.toy]
    started = time.monotonic()
    # In a new session: its time limit then also stops the commands that it runs.
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    ) as process:
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return {"ok": False, "why": f"ended after {seconds:.0f} s"}
    took = {"seconds": round(time.monotonic() - started, 1)}
    if process.returncode:
        last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return {"ok": False, "why": last[:300], **took}
    return {"ok": True, **took}


if __name__ == "__main__":
    sys.exit(main())
