"""Processes that tests start as users start commands."""

import os
from pathlib import Path

from support.paths import ROOT

WITHOUT_WARP = Path(__file__).parent / "without_warp"


def environment(**more):
    """Return the environment variables of a command of a user, without warp-lang.

    MJX needs three seconds to import warp-lang, which the extra `brax` does not install.
    """
    paths = (os.environ.get("PYTHONPATH"), str(ROOT), str(WITHOUT_WARP))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        **more,
    }
