"""The data-parallel serving engine that runs the policy."""
