"""Stands in for warp-lang, which MJX imports for three seconds wherever it is installed."""

raise ImportError("left out")
