from collections.abc import Sequence

from onbeat_proofs.delayer.rows import Row


class Together:
    """Lets prefills in when all ranks have one, so that nobody's decodes wait for one rank's prefill alone."""

    def decide(self, state: None, rank: int, rows: Sequence[Row]) -> tuple[bool, None]:
        """Wait for the others, as long as somebody decodes."""
        return all(row.prefillable for row in rows) or not any(row.running for row in rows), None
