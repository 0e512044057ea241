"""A file of rulesets in the format of XLand-MiniGrid."""

import numpy as np

TILES = ((3, 1), (7, 3), (4, 2))
"""The objects to pick up: the red ball, the blue key, the green square."""


def write(folder):
    """Write a file with a ruleset for each of TILES, and return its path."""
    from xminigrid.benchmarks import save_bz2_pickle

    path, tiles = str(folder / "rulesets"), np.array(TILES, np.uint8)
    rulesets = {
        "goals": np.array([(1, *tile, 0, 0) for tile in TILES], np.uint8),
        "rules": np.zeros((3, 1, 7), np.uint8),
        "init_tiles": tiles[:, None],
        "num_rules": np.zeros(3, np.uint8),
    }
    save_bz2_pickle(rulesets, path)
    return path
