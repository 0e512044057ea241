"""`python -m purejaxppo.evaluate`: the command `purejaxppo evaluate`."""

import sys

from purejaxppo.cli import begin_process, start

if __name__ == "__main__":
    begin_process()
    sys.exit(start("evaluate", sys.argv[1:]))
