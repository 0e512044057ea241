"""Number of kernels that a compiled program launches, from its optimised HLO text.

The kernels of a loop count once per iteration, or once if their number is unknown; a conditional
counts as its longest branch. A fusion is one kernel.
"""

import re
from typing import NamedTuple

FUSED = {"fusion", "custom-call", "copy", "copy-start", "sort", "cholesky", "fft"}
LEFT_ALONE = {"convolution", "dot", "reduce", "reduce-window", "scatter", "gather", "pad", "iota"}
SMALL = {"broadcast", "concatenate", "dynamic-slice", "dynamic-update-slice", "transpose", "slice"}
RANDOM = {"rng", "rng-bit-generator", "select-and-scatter", "triangular-solve", "convert", "add"}
KERNELS = FUSED | LEFT_ALONE | SMALL | RANDOM
COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
NO_KERNEL = ("AllocateBuffer", "Sharding", "PinBuffer", "Unpin", "CreateBuffer", "annotate_device")

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.$-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.$-]+ = (.*)$")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
VECTOR = re.compile(r"\w+\[\d+\]")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


class Loop(NamedTuple):
    """A loop of a program."""

    path: tuple[int, ...]  # iterations of the outer loops, and of this one; 0: unknown
    kernels: int  # of one iteration, including inner loops
    own: int  # of one iteration, without inner loops


class Count(NamedTuple):
    """The launches of a program."""

    kernels: int
    products: int  # of these, separate matrix products and convolutions
    collectives: int
    reads: int  # loops and branches whose condition the host reads


def computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the instructions of each computation by name, and the name of the entry."""
    found: dict[str, list[str]] = {}
    entry = current = ""
    for line in text.splitlines():
        if match := COMPUTATION.match(line):
            current = match[2]
            found[current] = []
            entry = current if match[1] else entry
        elif current and (match := INSTRUCTION.match(line)):
            found[current].append(match[1])
    return found, entry


def opcode(instruction: str) -> str:
    """Return the operation in `shape name(operands), attributes`."""
    rest = instruction
    if rest.startswith("("):
        depth = 0
        for i, letter in enumerate(rest):
            depth += (letter == "(") - (letter == ")")
            if not depth:
                rest = rest[i + 1 :]
                break
    else:
        rest = rest[rest.index(" ") :]
    return rest.strip().split("(", 1)[0]


def called(instruction: str, attribute: str) -> str:
    """Return the name of the computation in an attribute, or ""."""
    match = re.search(rf"\b{attribute}=%?([\w.$-]+)", instruction)
    return match[1] if match else ""


class Program:
    """The launches of a compiled program.

    Args:
        text: its optimised HLO, as of `compiled.as_text()`.
    """

    def __init__(self, text: str) -> None:
        """Count the launches."""
        self.found, entry = computations(text)
        self.loops: list[Loop] = []
        self.total = self.count(entry, ())

    def count(self, name: str, path: tuple[int, ...]) -> Count:
        """Count one execution of a computation inside the loops of `path`."""
        total = Count(0, 0, 0, 0)
        for instruction in self.found[name]:
            total = _add(total, self.of(instruction, path))
        return total

    def of(self, instruction: str, path: tuple[int, ...]) -> Count:
        """Count an instruction."""
        kind = opcode(instruction)
        plain = kind.removesuffix("-start")
        if kind == "while":
            return self.of_loop(instruction, path)
        if kind == "conditional":
            names = BRANCHES.search(instruction)
            branches = names[1].replace("%", "").split(", ") if names else []
            branches = branches or [
                called(instruction, f"{x}_computation") for x in ("true", "false")
            ]
            return _add(max(self.count(x, path) for x in branches), Count(0, 0, 0, 1))
        if plain in ("call", "async"):
            return self.count(called(instruction, "(?:to_apply|calls)"), path)
        if plain in COLLECTIVES:
            return Count(1, 0, 1, 0)
        if kind not in KERNELS or any(x in instruction for x in NO_KERNEL):
            return Count(0, 0, 0, 0)
        return Count(1, self.is_product(kind, instruction), 0, 0)

    def of_loop(self, instruction: str, path: tuple[int, ...]) -> Count:
        """Count all iterations of a loop."""
        match = TRIPS.search(instruction)
        trips = int(match[1]) if match else 0
        inside = len(self.loops)
        turn = self.count(called(instruction, "body"), (*path, trips))
        nested = [x for x in self.loops[inside:] if len(x.path) == len(path) + 2]
        own = turn.kernels - sum(x.kernels * max(x.path[-1], 1) for x in nested)
        self.loops.append(Loop((*path, trips), turn.kernels, own))
        if trips:
            return Count(*(trips * x for x in turn))
        condition = self.count(called(instruction, "condition"), path)
        return _add(_add(turn, condition), Count(0, 0, 0, 1))

    def is_product(self, kind: str, instruction: str) -> bool:
        """Return whether a kernel is a matrix product or a convolution."""
        if kind == "custom-call":
            return "gemm" in instruction or "conv" in instruction or "cublas" in instruction
        inner = self.found.get(called(instruction, "calls"), [])
        return any(opcode(x) in ("dot", "convolution") for x in inner)

    def turn(self, *path: int) -> int:
        """Return the kernels of one iteration of the largest loop whose path ends so, or 0."""
        ends = [x.kernels for x in self.loops if x.path[-len(path) :] == path]
        return max(ends, default=0)

    def joined_sums(self) -> int:
        """Count sums of a loss or its gradient inside kernels that concatenate a vector.

        Such sums are slow, see `platforms.in_separate_kernels`. Kernels that return the sums
        themselves are not counted.
        """
        calls = {called(x, "calls") for xs in self.found.values() for x in xs if "fusion(" in x}
        joined = [
            xs
            for name, xs in self.found.items()
            if name in calls
            and any(opcode(x) == "concatenate" for x in xs)
            and VECTOR.match(xs[-1])
            and opcode(xs[-1]) != "reduce"
        ]
        sums = [x for xs in joined for x in xs if opcode(x) == "reduce"]
        return sum("jvp(" in x for x in sums)


def _add(one: Count, other: Count) -> Count:
    return Count(*(a + b for a, b in zip(one, other, strict=True)))
