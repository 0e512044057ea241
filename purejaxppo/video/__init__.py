"""Drawing of episodes. These modules do not import other packages of the library.

`frames` functions take an episode's states and yield one uint8 frame [height, width, 3] for each.
"""
