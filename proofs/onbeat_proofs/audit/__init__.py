"""The audit: everything that can be found out about a scheduler class by reading and running it."""
