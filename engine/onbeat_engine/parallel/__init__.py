"""Ranks that share collectives: where they meet, what they agree on, the votes and the tokens that they exchange."""
