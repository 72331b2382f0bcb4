"""The theorems of the ledger, each beside the argument for the sizes it holds for."""
