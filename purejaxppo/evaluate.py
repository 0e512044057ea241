"""`python -m purejaxppo.evaluate`: the command `purejaxppo evaluate`."""

import sys

from purejaxppo import interrupts
from purejaxppo.commands import begin_process

if __name__ == "__main__":
    interrupts.listen()
    begin_process()
    from purejaxppo.commands.evaluate import main

    sys.exit(main())
