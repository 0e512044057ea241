"""`python -m purejaxppo.train`: the command `purejaxppo train`."""

import sys

from purejaxppo import interrupts
from purejaxppo.commands import begin_process

if __name__ == "__main__":
    interrupts.listen()
    begin_process()
    from purejaxppo.commands.train import main

    sys.exit(main())
