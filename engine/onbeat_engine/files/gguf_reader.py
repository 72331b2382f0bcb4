"""The `gguf` package's reader, without the time that it takes over a vocabulary."""

from typing import Any

import numpy
from gguf import GGUFReader


class Reader(GGUFReader):  # type: ignore[misc]  # the package has no types
    """Cuts pieces out of a plain array over the mapped file: of the map itself, numpy takes far longer for each.

    There are several for every token and every merge of the vocabulary.
    """

    @property
    def data(self) -> Any:
        """The bytes of the file, [size] uint8, read-only."""
        return self._data

    @data.setter
    def data(self, mapped: Any) -> None:
        self._data = numpy.asarray(mapped)
