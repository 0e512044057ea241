"""`python -m purejaxppo.train`: the command `purejaxppo train`."""

import sys

from purejaxppo import interrupts
from purejaxppo.commands import keep_programs

if __name__ == "__main__":
    interrupts.listen()
    keep_programs()
    from purejaxppo.commands.train import main

    sys.exit(main())
