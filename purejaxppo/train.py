"""`python -m purejaxppo.train`: the command `purejaxppo train`."""

import sys

from purejaxppo import interrupts

if __name__ == "__main__":
    interrupts.listen()
    from purejaxppo.commands.train import main

    sys.exit(main())
