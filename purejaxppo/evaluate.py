"""`python -m purejaxppo.evaluate`: the command `purejaxppo evaluate`."""

import sys

from purejaxppo import interrupts

if __name__ == "__main__":
    interrupts.listen()
    from purejaxppo.commands.evaluate import main

    sys.exit(main())
