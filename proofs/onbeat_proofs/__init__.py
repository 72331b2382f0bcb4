"""The tools that prove the policy, replay scenarios and audit a scheduler."""
