"""What is wrong with a class that its text shows, before anything runs."""
