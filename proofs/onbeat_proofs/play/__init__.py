"""One scheduler, driven: operations in, steps out, with a fake model and fake clients around it."""
