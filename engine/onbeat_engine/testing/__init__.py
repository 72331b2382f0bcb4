"""An executor without a model, for tests and for measuring what is around a model."""
