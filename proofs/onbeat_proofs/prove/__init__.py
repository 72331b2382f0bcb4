"""The proofs about one rank's step: theorems, the states that they start from, and the ledger of what is expected."""
