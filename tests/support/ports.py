"""Ports for processes that meet."""

import socket


def free_port():
    """A port that nobody listens at."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]
