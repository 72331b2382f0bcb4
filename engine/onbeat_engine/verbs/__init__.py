"""The verbs of the program `onbeat` that serve, measure and draw."""
