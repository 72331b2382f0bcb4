"""Stop strings: where the first of them ends in a text that comes in bits, and how much of it may become one."""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from onbeat_engine.wire.errors import BadRequest

MAX_STOP_CHARS = 4096
"""Most characters of all stop strings of a request together."""


class StopStrings:
    """An automaton over characters (Aho and Corasick 1975). A node is a text that some stop string begins with.

    Args:
        stops: not empty, each of them not empty.

    Raises:
        BadRequest: they are too long.
    """

    ROOT = 0

    def __init__(self, stops: Sequence[str]) -> None:
        size = sum(map(len, stops))
        if size > MAX_STOP_CHARS:
            raise BadRequest(f"stop has {size} characters; at most {MAX_STOP_CHARS} are taken", "stop")
        self._next: list[dict[str, int]] = [{}]
        self._fall = [0]
        """By node: its longest proper suffix that is a node."""
        self.matched = [0]
        """By node: length of the longest stop string that it ends with; 0: none."""
        self.held = [0]
        """By node: length of its longest suffix that may still become a stop string."""
        for stop in stops:
            node = self.ROOT
            for depth, character in enumerate(stop, 1):
                if character not in self._next[node]:
                    self._next[node][character] = len(self._next)
                    self._next.append({})
                    self._fall.append(0)
                    self.matched.append(0)
                    self.held.append(depth)
                node = self._next[node][character]
            self.matched[node] = len(stop)
        self._link()

    def step(self, node: int, character: str) -> int:
        """Return the node after one more character; constant time per character of a text."""
        following = self._next
        while character not in following[node]:
            if node == self.ROOT:
                return node
            node = self._fall[node]
        return following[node][character]

    def _link(self) -> None:
        """Fill the tables in, shorter nodes first; those of one character fall to the root already."""
        queue = deque(self._next[self.ROOT].values())
        while queue:
            node = queue.popleft()
            fall = self._fall[node]
            self.matched[node] = self.matched[node] or self.matched[fall]
            if not self._next[node]:
                self.held[node] = self.held[fall]
            for character, child in self._next[node].items():
                self._fall[child] = self.step(fall, character)
                queue.append(child)


@lru_cache(maxsize=256)
def stop_strings(stops: tuple[str, ...]) -> StopStrings:
    """Return the automaton of some stop strings, the same one for the same strings."""
    return StopStrings(stops)
