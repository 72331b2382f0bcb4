"""`python -m onbeat`: the program, where its script is not on the path."""

from onbeat.program import main

main()
