"""Small changes of the texts that are proved, each of which some check has to notice."""
