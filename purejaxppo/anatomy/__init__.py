"""Anatomy of a step: where the time of training goes, and which settings make it faster."""
