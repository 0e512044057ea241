"""Replaces warp-lang, which MJX needs three seconds to import wherever it is installed."""

raise ImportError("left out")
