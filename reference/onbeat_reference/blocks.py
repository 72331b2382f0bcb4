"""The KV block pool with block ids, reference counts and a prefix cache."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from onbeat_reference.pool import CountingPool
from onbeat_reference.request import Request


class BlockPool(CountingPool):
    """A `CountingPool` whose blocks have ids 0 .. num_blocks - 1.

    With prefix caching, a full block is found again by a hash over its tokens and everything before them. A cached
    block that nobody holds stays findable until it is needed; of these the one unused for longest goes first.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = False) -> None:
        super().__init__(num_blocks, block_size)
        self.enable_prefix_caching = enable_prefix_caching
        self.refs = [0] * num_blocks
        """How many requests hold each block."""
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Cached blocks that nobody holds, longest unused first."""
        self._by_hash: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    # The prefix cache.

    def match(self, request: Request) -> int:
        """Find the longest cached prefix that leaves at least one token to compute."""
        request.hits = []
        if not self.enable_prefix_caching:
            return 0
        for block_hash in self._hashes(request, (request.num_tokens - 1) // self.block_size):
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            request.hits.append(block)
        return len(request.hits) * self.block_size

    def need(self, request: Request, num_tokens: int) -> int:
        """As in `CountingPool`; a hit that somebody else holds costs nothing."""
        shared = sum(1 for block in request.hits if self.refs[block])
        return super().need(request, num_tokens) - shared

    def attach(self, request: Request) -> None:
        """Give a request the blocks of its latest match."""
        for block in request.hits:
            if self.refs[block] == 0:
                del self._idle[block]
                self.free -= 1
            self.refs[block] += 1
        request.blocks.extend(request.hits)
        request.num_blocks += len(request.hits)
        request.hits = []

    def commit(self, request: Request) -> None:
        """Make a request's full, computed blocks findable. The first of two equal blocks stays the findable one."""
        if not self.enable_prefix_caching:
            return
        full = min(request.num_computed, request.num_tokens) // self.block_size
        for block, block_hash in zip(request.blocks, self._hashes(request, full), strict=False):
            if block not in self._hash_of and block_hash not in self._by_hash:
                self._by_hash[block_hash] = block
                self._hash_of[block] = block_hash

    def forget(self, request: Request, from_block: int) -> None:
        """Take a request's blocks from `from_block` on out of the cache."""
        for block in request.blocks[from_block:]:
            self._uncache(block)

    def reset_cache(self) -> None:
        """Forget every cached block; blocks in use stay with their requests."""
        self._by_hash.clear()
        self._hash_of.clear()
        self._blank.extend(self._idle)
        self._idle.clear()

    def _uncache(self, block: int) -> None:
        block_hash = self._hash_of.pop(block, None)
        if block_hash is not None:
            del self._by_hash[block_hash]

    def _hashes(self, request: Request, count: int) -> list[bytes]:
        """Return the chain hashes of the first `count` blocks; each covers its tokens and the hash before it."""
        hashes = request.hashes
        size = self.block_size
        while len(hashes) < count:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else _root(request.cache_salt)
            block = parent + array("q", request.tokens[start : start + size]).tobytes()
            hashes.append(blake2b(block, digest_size=16).digest())
        return hashes if len(hashes) == count else hashes[:count]

    # Ids behind the counts.

    def releasable(self, request: Request) -> int:
        """Blocks of this request that nobody else holds."""
        return sum(1 for block in request.blocks if self.refs[block] == 1)

    def held(self, owners: Iterable[Request]) -> int:
        """Count the distinct block ids in these requests' tables."""
        return len({block for request in owners for block in request.blocks})

    def _take(self, request: Request, new: int) -> None:
        for _ in range(new):
            if self._blank:
                block = self._blank.pop()
            else:
                block, _unused = self._idle.popitem(last=False)
                self._uncache(block)
            self.refs[block] = 1
            request.blocks.append(block)

    def _give(self, request: Request) -> int:
        """Free from the tail, so that the head of a cached chain is the last to be reused."""
        released = 0
        for block in reversed(request.blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                released += 1
                if block in self._hash_of:
                    self._idle[block] = None
                else:
                    self._blank.append(block)
        request.blocks = []
        return released


def _root(salt: str) -> bytes:
    """The parent of a first block: a hash of its own kind, so that no salt can pass for another block's hash."""
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16, person=b"salt").digest()
