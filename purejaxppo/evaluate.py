"""`python -m purejaxppo.evaluate`: the command `purejaxppo evaluate`."""

import sys

from purejaxppo import interrupts
from purejaxppo.commands import keep_programs

if __name__ == "__main__":
    interrupts.listen()
    keep_programs()
    from purejaxppo.commands.evaluate import main

    sys.exit(main())
