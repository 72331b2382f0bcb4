"""Ports of this machine that nobody has taken yet."""

import socket

LOOPBACK = "127.0.0.1"


def listen(host: str = LOOPBACK) -> socket.socket:
    """Return a socket that listens at a free port: for rank 0, so that nobody else can take the port meanwhile."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=128)


def free_port(host: str = LOOPBACK) -> int:
    """Return a port that is free now: for a group whose rank 0 will keep the store there in a moment."""
    with listen(host) as server:
        return int(server.getsockname()[1])
