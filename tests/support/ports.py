"""Free ports."""

import socket


def free_port():
    """Return an unused port."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]
