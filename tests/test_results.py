"""The results page follows the rows that the benchmarks wrote."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "make_results.py"


def test_results_page_is_up_to_date():
    check = subprocess.run([sys.executable, SCRIPT, "--check"], check=False)
    assert check.returncode == 0, "run: python docs/make_results.py"
