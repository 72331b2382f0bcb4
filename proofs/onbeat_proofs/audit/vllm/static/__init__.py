"""What a class of vLLM's family gets wrong beside the installed vLLM, found in its text alone."""
