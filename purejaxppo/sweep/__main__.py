"""The command `purejaxppo sweep --config cartpole.yaml --grid ppo.gamma=0.98,0.99`.

Settings that differ only in tunable numbers train in one program, with all their seeds.
"""

import sys

from purejaxppo.cli import begin_process, start

if __name__ == "__main__":  # before JAX is imported
    begin_process()
    sys.exit(start("sweep", sys.argv[1:]))

from collections.abc import Sequence

from purejaxppo.cli import parser
from purejaxppo.cli.flags import SweepFlags
from purejaxppo.interrupts import NOTHING_LOST
from purejaxppo.sweep.session import sweep


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    interrupted = f"interrupted; {NOTHING_LOST}"
    return parser.run(
        lambda words: sweep(*parser.parse_over_config(SweepFlags, words)),
        args,
        interrupted=interrupted,
    )
