"""A scheduler with a fault that people really had: `onbeat audit examples/hasty.py:Hasty` finds it."""

from onbeat_reference import Request, Scheduler


class Hasty(Scheduler):
    """Admits a request as soon as its next chunk fits, instead of all that it knows (case B46)."""

    def _has_room(self, request: Request, needed: int, slots: int, blocks: int) -> bool:
        if request.num_blocks == 0 and self.num_slots + slots >= self.config.max_num_seqs:
            return False
        chunk = min(request.num_tokens, self.config.max_num_batched_tokens)
        return self.pool.need(request, chunk) <= self.pool.free
