"""Models: configuration, weights, decoder."""
