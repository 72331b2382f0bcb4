"""Small delayers, a right one and broken ones. The names say what is wrong."""

import os
import signal
import time
from collections.abc import Sequence

from onbeat_proofs.delayer.rows import Row


def wanted(rows: Sequence[Row]) -> bool:
    """Whether anybody has a prefill, and a wait would cost nobody a pass."""
    return any(row.prefillable for row in rows) and any(row.running for row in rows)


class Patient:
    """Waits as long as it may while somebody decodes: right in everything that is checked by default."""

    initial = 0

    def __init__(self, max_delay_passes: int) -> None:
        self.most = max_delay_passes

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Refuse until the bound."""
        if wanted(rows) and state < self.most:
            return False, state + 1
        return True, 0


class Keeps(Patient):
    """Right also over gaps: a wait goes on where it was."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Forget a wait only when it is over, or nobody has anything to do."""
        if wanted(rows) and state < self.most:
            return False, state + 1
        gap = not any(row.prefillable for row in rows) and any(row.running for row in rows)
        return True, state if gap else 0


class OffByOne(Patient):
    """Waits one pass too many."""

    def __init__(self, max_delay_passes: int) -> None:
        super().__init__(max_delay_passes + 1)


class Unbounded:
    """Waits as long as somebody decodes, without a count."""

    def decide(self, state: None, rank: int, rows: Sequence[Row]) -> tuple[bool, None]:
        """Refuse."""
        return not wanted(rows), None


class Growing:
    """Waits for ever, and counts."""

    initial = 0

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Refuse and count."""
        return (False, state + 1) if wanted(rows) else (True, 0)


class Selfish(Patient):
    """Every rank waits only where it decodes itself."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Look at one's own row."""
        return super().decide(state, rank, [rows[rank]])


class Idler(Patient):
    """Waits also where nobody decodes."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Never mind the decodes."""
        if any(row.prefillable for row in rows) and state < self.most:
            return False, state + 1
        return True, 0


class Latched(Patient):
    """Once a rank was full it never waits again."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Keep a flag, as -1."""
        if state == -1 or any(row.running == 2 for row in rows):
            return True, -1
        return super().decide(state, rank, rows)


class Harmless(Patient):
    """Keeps a flag for ever that changes nothing."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Add 10 once anything ran."""
        allow, following = super().decide(state % 10, rank, rows)
        return allow, following + (10 if state >= 10 or wanted(rows) else 0)


class Never:
    """Refuses nobody."""

    def decide(self, state: None, rank: int, rows: Sequence[Row]) -> tuple[bool, None]:
        """Allow."""
        return True, None


class PrefillsFirst(Patient):
    """A rank that prefills runs no decode."""

    prefill_excludes_decode = True

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Wait only beside full ranks."""
        if any(row.running == 2 for row in rows):
            return super().decide(state, rank, rows)
        return True, 0


class Crashes(Patient):
    """Fails once a wait is over."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Divide by what is left."""
        if wanted(rows):
            state -= 0 * (1 // (self.most - state))
        return super().decide(state, rank, rows)


class Exits(Patient):
    """Leaves."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Leave when somebody decodes."""
        if wanted(rows):
            raise SystemExit(0)
        return True, 0


class Dies(Patient):
    """Takes its process along in the second pass of a wait."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Die."""
        if wanted(rows) and state == 1:
            print("dying")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decide(state, rank, rows)


class DiesEarly:
    """Takes its process along when it is made."""

    def __init__(self) -> None:
        os._exit(3)

    def decide(self, state: None, rank: int, rows: Sequence[Row]) -> tuple[bool, None]:
        """Never get here."""
        return True, None


class Hangs(Patient):
    """Gives no answer, whatever happens to it."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Sleep."""
        if wanted(rows):
            time.sleep(60)
        return True, 0


class Answers(Patient):
    """Answers with a number."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Say 1 for yes."""
        return 1, 0  # type: ignore[return-value]  # the fault it is here for


class Lists(Patient):
    """Keeps a list, which cannot be told from others by hash."""

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Return a list."""
        return True, []  # type: ignore[return-value]  # the fault it is here for


class Secret(Patient):
    """Counts in itself, beside the state."""

    def __init__(self, max_delay_passes: int) -> None:
        super().__init__(max_delay_passes)
        self.calls = 0

    def decide(self, state: int, rank: int, rows: Sequence[Row]) -> tuple[bool, int]:
        """Let every third call pass."""
        self.calls += 1
        return self.calls % 3 == 0, 0


class Demanding(Patient):
    """Wants what nobody gives."""

    def __init__(self, unknown: int) -> None:
        super().__init__(unknown)


class Undecided:
    """Has no `decide`."""
