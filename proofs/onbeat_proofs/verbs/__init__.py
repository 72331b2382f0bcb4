"""The verbs of the program `onbeat` that prove, replay and audit: options in, exit codes out."""
