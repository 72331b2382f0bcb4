"""Recorded steps, replayed through the monitor: `onbeat check-trace`."""
