"""One rank: scheduler, protocol, monitor and executor in one loop, and the process around it."""
