"""Other people's code: found by name, located, copied, and called where it may crash or hang."""
