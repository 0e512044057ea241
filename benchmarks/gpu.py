"""All figures of a GPU with one command.

    python benchmarks/gpu.py --budget 540            # again, to go on where it ended
    python benchmarks/gpu.py --rehearse              # the same rows on a CPU, with small sizes

Items run in the order of their worth, each in a process with a limit of its own (those of a
rehearsal share one), and append a row to --results as soon as it is measured. A row that is there
is not measured again, and an item that was ended by its limit is not tried again. The end prints
one line a row. Items that need a package or another device say so in their row. See `gpu_items.py`
for what they measure.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
from gpu_items import END, ITEMS, TARGETS, Row, work

PATH = machine.RESULTS / "gpu.jsonl"
REHEARSED_SECONDS = 300.0
"""Limit of an item in a rehearsal."""
REHEARSED = {"JAX_PLATFORMS": "cpu"}
"""Environment variables of a rehearsal."""


def main() -> int:
    """Runs the items, or one of them in a process of their own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=540, help="seconds of all items")
    parser.add_argument("--items", nargs="*", choices=ITEMS, default=list(ITEMS), metavar="ITEM")
    parser.add_argument("--rehearse", action="store_true", help="small sizes, on a CPU")
    parser.add_argument("--results", type=Path, default=None, help=f"rows; by default {PATH.name}")
    parser.add_argument("--list", action="store_true", help="print the items, and end")
    parser.add_argument("--limit", type=float, default=0, help="seconds of an item, not its own")
    parser.add_argument("--work", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--done", default="{}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list:
        for name, item in ITEMS.items():
            print(f"{name:24} {item.seconds:4.0f} s  {item.about}")
        return 0
    if args.work:
        work(args.work, json.loads(args.done), rehearse=args.rehearse)
        return 0
    path = args.results or (Path("gpu_rehearsal.jsonl") if args.rehearse else PATH)
    run(args.items, path, args.budget, rehearse=args.rehearse, limit=args.limit)
    for row in machine.read_rows(path):
        print(line(row))
    return 0


def run(names: list[str], path: Path, budget: float, *, rehearse: bool, limit: float = 0) -> None:
    """Runs items until the budget is spent; see the module's docstring."""
    ends = time.monotonic() + budget
    rows = machine.read_rows(path)
    finished = {row["item"] for row in rows if row["name"] == ""}  # or ended by its limit
    waiting = [name for name in names if name not in finished]
    while waiting:
        name, left = waiting[0], ends - time.monotonic()
        own = limit or (REHEARSED_SECONDS if rehearse else ITEMS[name].seconds)
        if left < min(own, 10):
            print(f"{name}: no time left", flush=True)
            waiting.pop(0)
            continue
        group = Group(waiting[:] if rehearse else [name], path)
        outcome = group.run(min(own, left), rehearse=rehearse)
        if outcome and own > left:  # cut short by the budget alone, it may go on next time
            group.ended.append(group.names[0])
        elif outcome:
            group.end(outcome)
        waiting = [name for name in waiting if name not in group.ended]


class Group:
    """Items that run in one process, most often one.

    Args:
        names: of the items that have not ended yet, in their order.
        path: of the rows.
    """

    def __init__(self, names: list[str], path: Path) -> None:
        """Nothing runs yet."""
        self.names, self.path = names, path
        self.ended: list[str] = []
        self.started = time.monotonic()

    def run(self, seconds: float, *, rehearse: bool) -> Row | None:
        """Runs the items; returns why the first that is left did not end, None if all did.

        Args:
            seconds: limit of each item.
            rehearse: on a CPU, with small sizes.
        """
        self.started = time.monotonic()
        process = self.start(rehearse=rehearse)
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
        reader.start()
        killed = threading.Event()

        def watch() -> None:
            while process.poll() is None and not killed.wait(0.05):
                if time.monotonic() > self.started + seconds:
                    killed.set()
                    process.kill()

        watcher = threading.Thread(target=watch)
        watcher.start()
        for text in process.stdout:
            self.read(text)
        code = process.wait()
        watcher.join()
        reader.join(timeout=5)
        if not self.names:
            return None
        why = next((x.strip() for x in reversed(errors) if x.strip()), f"exit code {code}")
        why = f"ended after {seconds:.0f} s" if killed.is_set() else why[:300]
        return {"ok": False, "why": why}

    def start(self, *, rehearse: bool) -> Any:
        """The process of the items."""
        rows = machine.read_rows(self.path)
        done = {name: [row["name"] for row in rows if row["item"] == name] for name in self.names}
        command = [sys.executable, __file__, "--done", json.dumps(done), "--work", *self.names]
        return subprocess.Popen(
            command + ["--rehearse"] * rehearse,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **ITEMS[self.names[0]].env, **(REHEARSED if rehearse else {})},
        )

    def read(self, text: str) -> None:
        """Keeps what a line of the process's output says: a row of an item, or its end."""
        if text.startswith("row "):
            row = {"item": self.names[0], **json.loads(text.removeprefix("row "))}
            append(self.path, row)
            print(line(row), flush=True)
        elif text == END:
            self.end({"ok": True})

    def end(self, outcome: Row) -> None:
        """Keeps the outcome of the first item that is left, and how long it took."""
        seconds = round(time.monotonic() - self.started, 1)
        name = self.names.pop(0)
        append(self.path, {"item": name, "name": "", **outcome, "seconds": seconds})
        self.ended.append(name)
        self.started = time.monotonic()


def append(path: Path, row: Row) -> None:
    """Adds a row to a file, on the disk when this returns."""
    row = {**row, "date": datetime.date.today().isoformat()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


FIGURES: dict[str, Callable[[Any], str]] = {
    "compile_seconds": lambda x: f"compiled in {x:.1f} s",
    "update_us": lambda x: f"{x:,.0f} us per update",
    "launches": lambda x: f"{x:,} launches",
    "launch_us": lambda x: f"{x:.2f} us per launch",
    "peak_gib": lambda x: f"peak {x:.2f} GiB",
    "predicted": lambda x: f"predicted {x[0]:,.0f}-{x[1]:,.0f}",
}


def line(row: Row) -> str:
    """A row in words: name, sizes, ok or the reason, and its figures."""
    parts = [f"{row['item']}: {row['name']}" if row["name"] else row["item"]]
    parts += [row["sizes"]] if "sizes" in row else []
    parts.append("ok" if row.get("ok") else row.get("why", "failed"))
    parts += [words(row[key]) for key, words in FIGURES.items() if row.get(key) is not None]
    if rounds := row.get("rounds"):
        low, middle, high = min(rounds), row["steps_per_second"], max(rounds)
        parts.append(f"{middle:,.0f} ({low:,.0f}-{high:,.0f}) steps/s")
        target = None if row.get("rehearsed") else TARGETS.get(row["name"])
        if target:
            parts.append(f"target {target:,.0f} {'met' if middle >= target else 'missed'}")
    if row.get("ratio") is not None:
        parts.append(f"{row['ratio']:.2f} times {row['rival']}")
    parts += [f"{key} {x}" for key, x in row.get("facts", {}).items()]
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
