"""`python -m purejaxppo.train`: the command `purejaxppo train`."""

import sys

from purejaxppo import interrupts
from purejaxppo.commands import begin_process, imported

if __name__ == "__main__":
    begin_process()
    interrupts.listen()
    sys.exit(imported("purejaxppo.commands.train").main())
