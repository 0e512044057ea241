"""`python -m purejaxppo.train`: the command `purejaxppo train`."""

import sys

from purejaxppo.cli import begin_process, start

if __name__ == "__main__":
    begin_process()
    sys.exit(start("train", sys.argv[1:]))
