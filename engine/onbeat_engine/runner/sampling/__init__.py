"""From logits to tokens, on the device, per request."""
