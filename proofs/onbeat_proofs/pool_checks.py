"""Checks of the block pool by itself: block ids, reference counts, and the prefix cache against a plain model.

The scheduler's own checks see the pool through counts. These look at ids and contents: what a block holds is the
prefix that its owner has computed, and whoever is given a cached block must find his own prefix in it.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random

from onbeat_reference.blocks import BlockPool
from onbeat_reference.request import Request

SEEDS, OPERATIONS = 12, 60
NUM_BLOCKS, SIZE = 7, 2
PROMPTS = ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 7), (1, 2, 3, 4), (1, 2, 8, 4, 5), (3, 4, 5, 6, 7, 8, 9), (1, 2))

Prefix = tuple[str, tuple[int, ...]]
"""Salt, and all tokens up to the end of a full block."""


class _World:
    """A pool, its users, and a plain model of both.

    Attributes:
        content: what each block holds: the prefix that somebody computed into it.
        cached: the block behind each prefix that can be found.
        idle: cached blocks that nobody holds, longest unused first.
    """

    def __init__(self, caching: bool) -> None:
        self.pool = BlockPool(NUM_BLOCKS, SIZE, enable_prefix_caching=caching)
        self.caching = caching
        self.users: list[Request] = []
        self.content: dict[int, Prefix] = {}
        self.cached: dict[Prefix, int] = {}
        self.idle: list[int] = []
        self.evicted: list[int] = []
        self.added = 0

    def prefixes(self, request: Request, count: int) -> list[Prefix]:
        salt = request.cache_salt
        return [(salt, tuple(request.tokens[: (i + 1) * SIZE])) for i in range(count)]

    def holders(self, block: int) -> int:
        return sum(user.blocks.count(block) for user in self.users)

    # --- What users do -------------------------------------------------------------------------------------------

    def come(self, random: Random) -> str | None:
        """A request comes, finds what is cached of it, and takes it."""
        prompt = random.choice(PROMPTS)
        request = Request(f"r{self.added}", prompt, 4, cache_salt=random.choice(("", "", "salt")))
        self.added += 1
        found = self.pool.match(request)
        due: list[int] = []
        for prefix in self.prefixes(request, (len(prompt) - 1) // SIZE):
            if not self.caching or prefix not in self.cached:
                break
            due.append(self.cached[prefix])
        if request.hits != due or found != len(due) * SIZE:
            return f"{list(prompt)} finds blocks {request.hits} ({found} tokens); cached are {due}"
        asked = random.randrange(len(prompt) + 1)
        need = self.pool.need(request, asked)
        missing = -(-asked // SIZE) - sum(1 for block in due if self.holders(block))
        if need != missing:
            return f"{list(prompt)} needs {need} blocks for {asked} tokens; {missing} would leave `free`"
        self.pool.attach(request)
        if request.blocks != due or request.num_blocks != len(due):
            return f"{request.blocks} were attached, not {due}"
        self.idle = [block for block in self.idle if block not in due]
        request.num_computed = found
        self.users.append(request)
        return None

    def compute(self, request: Request, random: Random) -> str | None:
        """A request gets blocks for some more tokens, and its drafts, and computes them."""
        before, held = self.pool.free, list(request.blocks)
        most = request.num_tokens + 2
        end = min(request.num_computed + random.randint(1, 4), most)
        new = -(-end // SIZE) - len(held)
        if self.pool.grow(request, end) != (new <= before):
            return f"{new} blocks of {before} were {'given' if new > before else 'refused'}"
        if new > before:
            return None
        for block in request.blocks[len(held) :]:
            self.take(block)
        request.num_computed = end
        self.fill(request)
        return None

    def fill(self, request: Request) -> None:
        """What is computed and known of a request is in its blocks."""
        full = min(request.num_computed, request.num_tokens) // SIZE
        for block, prefix in zip(request.blocks, self.prefixes(request, full), strict=False):
            self.content.setdefault(block, prefix)

    def take(self, block: int) -> None:
        """A block has a new owner: what it held is gone."""
        if block in self.idle:
            self.evicted.append(self.idle.index(block))
            self.idle.remove(block)
        self.uncache(block)

    def uncache(self, block: int) -> None:
        self.content.pop(block, None)
        self.cached = {prefix: other for prefix, other in self.cached.items() if other != block}

    def sample(self, request: Request, random: Random) -> str | None:
        """A token becomes known."""
        if request.num_tokens <= request.num_computed:
            request.tokens.append(random.randint(1, 9))
            request.num_tokens += 1
            request.num_computed = request.num_tokens - 1  # the drafts behind it were wrong
            self.fill(request)
        return None

    def commit(self, request: Request) -> str | None:
        """What a request has computed may be found by others."""
        self.pool.commit(request)
        full = min(request.num_computed, request.num_tokens) // SIZE
        for block, prefix in zip(request.blocks, self.prefixes(request, full), strict=False):
            if self.caching and prefix not in self.cached and block not in self.cached.values():
                self.cached[prefix] = block
        return None

    def leave(self, request: Request) -> str | None:
        """A request gives everything back, its last block first."""
        alone = [block for block in request.blocks if self.holders(block) == 1]
        releasable, blocks = self.pool.releasable(request), list(request.blocks)
        released = self.pool.release(request)
        self.users.remove(request)
        self.idle += [b for b in reversed(blocks) if b in alone and b in self.cached.values()]
        if not releasable == released == len(alone):
            return f"{releasable} blocks could be released, {released} were, {len(alone)} were nobody else's"
        if request.blocks or request.num_blocks:
            return f"{request.id} keeps {request.blocks} ({request.num_blocks})"
        return None

    def forget(self, request: Request, random: Random) -> str | None:
        """The later blocks of a request turn out not to be valid."""
        shared = sum(1 for block in request.blocks if self.holders(block) > 1)
        first = random.randint(shared, len(request.blocks))
        self.pool.forget(request, first)
        for block in request.blocks[first:]:
            self.uncache(block)
        request.num_computed = min(request.num_computed, first * SIZE)
        return None

    def reset(self) -> str | None:
        """Every cached block is forgotten."""
        self.pool.reset_cache()
        self.cached, self.idle = {}, []
        return None

    # --- What must hold ------------------------------------------------------------------------------------------

    def wrong(self) -> str | None:
        """Hold the pool against the model."""
        pool = self.pool
        held = {block for user in self.users for block in user.blocks}
        if pool.free != NUM_BLOCKS - len(held) or pool.held(self.users) != len(held):
            return f"{pool.free} blocks are free and {pool.held(self.users)} held, of {NUM_BLOCKS}; {sorted(held)} are held"
        if pool.refs != [self.holders(block) for block in range(NUM_BLOCKS)]:
            return f"reference counts are {pool.refs}"
        for user in self.users:
            if len(set(user.blocks)) != len(user.blocks) or user.num_blocks != len(user.blocks):
                return f"{user.id} holds {user.blocks}, and counts {user.num_blocks}"
        if any(self.evicted):
            return "a cached block was reused before one that had been unused for longer"
        for prefix, block in self.cached.items():
            if self.content.get(block) != prefix:
                return f"block {block} is found for {prefix} and holds {self.content.get(block)}"
        return None


def _history(seed: int, caching: bool) -> str | None:
    random, world = Random(seed), _World(caching)
    for number in range(OPERATIONS):
        user = random.choice(world.users) if world.users else None
        if user is None or random.random() < 0.2:
            wrong = world.come(random)
        else:
            wrong = _operation(world, user, random)
        wrong = wrong or world.wrong()
        if wrong is not None:
            return f"history {seed}, operation {number}: {wrong}"
    return None


def _operation(world: _World, user: Request, random: Random) -> str | None:
    choice = random.randrange(12)
    if choice < 4:
        return world.compute(user, random)
    if choice < 6:
        return world.sample(user, random)
    if choice < 8:
        return world.commit(user)
    if choice < 10:
        return world.leave(user)
    if choice == 10:
        return world.forget(user, random)
    return world.reset() if random.random() < 0.5 else None


def _histories(caching: bool) -> str | None:
    results: Iterable[str | None] = (_history(seed, caching) for seed in range(SEEDS))
    return next((wrong for wrong in results if wrong is not None), None)


def cached_prefixes_are_found() -> str | None:
    """Histories with the prefix cache."""
    return _histories(True)


def nothing_is_cached() -> str | None:
    """Histories without it."""
    return _histories(False)


POOL_CHECKS: Sequence[Callable[[], str | None]] = (cached_prefixes_are_found, nothing_is_cached)
"""Each returns what is wrong, or None."""
