"""The program `onbeat`. Every package that is installed adds its verbs by the entry points `onbeat.commands`."""
