"""Pictures of episodes: numpy, Pillow and MuJoCo only, nothing of the library above it.

`film` functions take an episode's states and yield one uint8 frame [height, width, 3] for each.
"""
