"""What a rank is built from beside its configuration, and the function that builds it, by name."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

from onbeat_engine.parallel.exchange import Alone, Exchange
from onbeat_engine.rank.compiling import CompileGrammar
from onbeat_engine.runner.executor import Executor
from onbeat_engine.wire.config import EngineConfig
from onbeat_spec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Built:
    """What a rank is made of beside its configuration."""

    executor: Executor
    num_blocks: int
    max_model_len: int
    exchange: Exchange = field(default_factory=Alone)
    vocab_size: int | None = None
    """Of the model; None: as the tokenizer's."""
    compile_grammar: CompileGrammar | None = None
    on_cpu: bool = True
    """Its steps take this process's own time; if one takes none, it hangs."""


Build = Callable[[EngineConfig, int], Built]
"""Builds a rank by its number; called in the rank's own process."""


def resolve(name: str) -> Build:
    """Return the function that a `module:function` names.

    Raises:
        ConfigError: there is none.
    """
    module, _, function = name.partition(":")
    try:
        build: Build = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name!r} names no function that builds a rank: {error}") from None
    return build
