"""Measure everything about a GPU with one command, or compile programs for a GPU without one.

    python benchmarks/gpu.py --budget 540              # run again to continue
    python benchmarks/gpu.py --programs [cartpole gru ...] [--cpu]

Items run in the order of their value, each in a process with a time limit, and append rows to
benchmarks/results/gpu.jsonl as soon as they are measured. Stored rows are not measured again,
and an item that reached its time limit is not tried again. `--list` prints the items (gpu_items.py,
gpu_correctness.py). `--programs` needs no GPU: see gpu_programs.py.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gpu_items
import gpu_programs
import harness
from gpu_items import ITEMS

TOY_ITEMS = ["machine", "cartpole"]
TOY_SECONDS = 600.0
"""Limit of an item of a toy run."""


def main() -> int:
    """Run the items, one of them in its process, or compile programs."""
    parser = harness.options(__doc__, "gpu")
    parser.add_argument("--budget", type=float, default=540, help="seconds for all items")
    parser.add_argument("--items", nargs="*", choices=ITEMS, metavar="ITEM", help="all by default")
    parser.add_argument("--list", action="store_true", help="print the items")
    parser.add_argument("--work", choices=ITEMS, help=argparse.SUPPRESS)
    gpu_programs.add_flags(parser)
    args = parser.parse_args()
    if args.list:
        for name, item in ITEMS.items():
            print(f"{name:12} {item.seconds:4.0f} s  {item.about}")
    elif args.work:
        gpu_items.work(args.work, args.results, toy=args.toy)
    elif args.programs is not None or args.one:
        return gpu_programs.main(args, __file__)
    else:
        with tempfile.TemporaryDirectory() as folder:
            if args.toy and args.results == parser.get_default("results"):
                args.results = Path(folder) / "gpu.jsonl"
            run(args)
    return 0


def run(args: argparse.Namespace) -> None:
    """Run items until the budget is spent, then print all rows."""
    ends = time.monotonic() + args.budget
    for name in args.items or (TOY_ITEMS if args.toy else ITEMS):
        rows = harness.read_rows(args.results)
        if any(row["item"] == name and row["name"] == "" for row in rows):
            continue  # finished, or ended by its limit
        left = ends - time.monotonic()
        if left < 10:
            print(f"{name}: no time left", flush=True)
            break
        limit = TOY_SECONDS if args.toy else ITEMS[name].seconds
        outcome = run_item(name, args, min(left, limit))
        # An item that only the budget ended continues next time.
        if outcome["ok"] or left >= limit:
            gpu_items.append(args.results, {"item": name, "name": "", **outcome})
    for row in harness.read_rows(args.results):
        print(json.dumps(row))


def run_item(name: str, args: argparse.Namespace, seconds: float) -> harness.Row:
    """Run an item in a process; return its outcome."""
    command = [sys.executable, __file__, "--work", name, "--results", str(args.results)]
    env = {**os.environ, **({"JAX_PLATFORMS": "cpu"} if args.toy else {})}
    command += ["--toy"] * args.toy
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, timeout=seconds, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "why": f"ended after {seconds:.0f} s"}
    took = {"seconds": round(time.monotonic() - started, 1)}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"ok": False, "why": last[:300], **took}
    return {"ok": True, **took}


if __name__ == "__main__":
    sys.exit(main())
