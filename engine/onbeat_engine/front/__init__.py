"""The front end: takes requests, places them on ranks, and supervises the ranks' processes."""
