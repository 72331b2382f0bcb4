"""What front end and ranks have in common: messages, configuration, parameters, errors."""
