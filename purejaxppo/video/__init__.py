"""Pictures of episodes; the modules import nothing else of the library.

`frames` functions take an episode's states and yield one uint8 frame [height, width, 3] for each.
"""
