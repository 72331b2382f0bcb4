"""The tools that prove the policy, replay scenarios and audit a scheduler, and the program `onbeat`."""
