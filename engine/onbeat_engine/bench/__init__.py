"""Load for servers and for the engine itself, and what it measured."""
