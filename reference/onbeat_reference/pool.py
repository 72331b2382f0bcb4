"""The KV block pool's arithmetic: who may have how many blocks.

`CountingPool` is all that the scheduler's decisions depend on, and it works with numbers only, so the prover runs it
symbolically. `BlockPool` (blocks.py) is the same pool with block ids and a prefix cache behind it: it inherits these
methods and fills in `_take` and `_give`.
"""

from collections.abc import Iterable

from onbeat_reference.request import Request


class CountingPool:
    """A pool of `num_blocks` blocks of `block_size` tokens.

    Attributes:
        free: blocks that nobody holds (cached or not).
        promised: blocks promised to admitted requests and not taken yet. A promise binds admission only: the growth
            of running requests may use any free block, and preempts when there is none.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free = num_blocks
        self.promised = 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return (num_tokens + self.block_size - 1) // self.block_size

    def match(self, request: Request) -> int:
        """Return how many leading tokens of a request without blocks are cached (whole blocks, never all tokens)."""
        return 0

    def need(self, request: Request, num_tokens: int) -> int:
        """Blocks that would leave `free` if the request, with its latest match, came to hold `num_tokens` tokens."""
        return self.blocks_for(num_tokens) - request.num_blocks

    def attach(self, request: Request) -> None:
        """Give a request the cached blocks of its latest match."""

    def reserve(self, request: Request, num_tokens: int) -> None:
        """Promise a request the blocks it still needs to hold `num_tokens` tokens."""
        self.promised -= request.reserved
        request.reserved = self.blocks_for(num_tokens) - request.num_blocks
        self.promised += request.reserved

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Make a request hold blocks for `num_tokens` tokens; all or nothing (B123). False: no room."""
        new = self.blocks_for(num_tokens) - request.num_blocks
        if new <= 0:
            return True
        if new > self.free:
            return False
        self.free -= new
        request.num_blocks += new
        kept = request.reserved
        if kept > new:
            kept = new
        request.reserved -= kept
        self.promised -= kept
        self._take(request, new)
        return True

    def releasable(self, request: Request) -> int:
        """Blocks that would come back to `free` if this request gave up its own."""
        return request.num_blocks

    def release(self, request: Request) -> int:
        """Take all blocks and promises from a request; return how many blocks came back to `free`."""
        released = self._give(request)
        self.free += released
        self.promised -= request.reserved
        request.reserved = 0
        request.num_blocks = 0
        return released

    def held(self, owners: Iterable[Request]) -> int:
        """Count the blocks of these requests, each block once."""
        return sum(request.num_blocks for request in owners)

    def commit(self, request: Request) -> None:
        """Put a request's full, computed blocks into the prefix cache."""

    def forget(self, request: Request, from_block: int) -> None:
        """Take a request's blocks from `from_block` on out of the prefix cache: their content is not valid."""

    def reset_cache(self) -> None:
        """Forget every cached block."""

    def _take(self, request: Request, new: int) -> None:
        """Choose `new` block ids for a request (hook)."""

    def _give(self, request: Request) -> int:
        """Take a request's block ids back (hook); return how many nobody holds any more."""
        return request.num_blocks
