"""Tokenizers out of GGUF metadata: byte-level BPE (`gpt2`) and SentencePiece's BPE (`llama`)."""

from pathlib import Path
from typing import Any

from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.errors import ModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_DIGIT_BY_DIGIT = r"\p{N}"
_THREE_DIGITS = r"\p{N}{1,3}"

_SPLITS = {
    "gpt-2": (_GPT2,),
    "default": (_GPT2,),
    "smollm": (_DIGIT_BY_DIGIT, _GPT2),
    "starcoder": (_DIGIT_BY_DIGIT, _GPT2),
    "llama-bpe": (_WORDS % _THREE_DIGITS,),
    "llama3": (_WORDS % _THREE_DIGITS,),
    "qwen2": (_WORDS % _DIGIT_BY_DIGIT,),
}
"""By `tokenizer.ggml.pre`: into what a text is cut, one expression after the other, before merges."""
_LLAMA3 = ("llama-bpe", "llama3")

_CONTROL = 3
_USER_DEFINED = 4
_SPACE = "\u2581"


class _Metadata:
    """Values under `tokenizer.`."""

    def __init__(self, path: Path) -> None:
        from onbeat_engine.files.gguf_reader import Reader  # noqa: PLC0415 - needed for GGUF files only

        try:
            self._fields = Reader(path).fields
        except Exception as error:  # a damaged file makes the reader raise nearly anything
            raise ModelError(f"{path} cannot be read as GGUF: {error}") from None
        self._path = path

    def value(self, name: str, default: Any = None) -> Any:
        """Return a number, a bool or a string."""
        field = self._fields.get(f"tokenizer.{name}")
        return default if field is None else field.contents()

    def array(self, name: str) -> list[Any]:
        """Return a list.

        Raises:
            ModelError: it is not there.
        """
        field = self._fields.get(f"tokenizer.{name}")
        if field is None:
            raise ModelError(f"{self._path} has no tokenizer.{name}")
        if field.types[-1].name == "STRING":
            return [bytes(field.parts[part]).decode("utf-8") for part in field.data]
        return [field.parts[part].item() for part in field.data]


def load_gguf(path: Path) -> Tokenizer:
    """Return the tokenizer in a GGUF file.

    Raises:
        ModelError: there is none, or one of a kind that is not known here, or it is damaged.
    """
    try:
        return _load(path)
    except ModelError:
        raise
    except Exception as error:  # lists of other lengths, ids beyond them: it may be wrong in any way
        reason = (str(error).strip() or "nothing more is known").splitlines()[0]
        raise ModelError(f"the tokenizer in {path} is damaged: {type(error).__name__}: {reason}") from error


def _load(path: Path) -> Tokenizer:
    metadata = _Metadata(path)
    kind = metadata.value("ggml.model")
    tokens = metadata.array("ggml.tokens")
    types = metadata.array("ggml.token_type")
    pre = metadata.value("ggml.pre", "default")
    if kind == "gpt2":
        backend = _byte_level(tokens, metadata.array("ggml.merges"), pre)
        add_bos = pre in _LLAMA3
    elif kind == "llama":
        backend = _sentencepiece(tokens, metadata.array("ggml.scores"), metadata.value("ggml.add_space_prefix", True))
        add_bos = True
    else:
        raise ModelError(f"{path} has a tokenizer of kind {kind!r}; gpt2 and llama are known")
    _add(backend, tokens, types)
    bos = metadata.value("ggml.bos_token_id")
    if metadata.value("ggml.add_bos_token", add_bos) and bos is not None:
        _begin_with(backend, tokens[bos], bos)
    names = ("ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id")
    ends = dict.fromkeys(id for name in names if (id := metadata.value(name)) is not None)
    return Tokenizer(backend, eos_token_ids=list(ends), bos_token_id=bos, chat_template=metadata.value("chat_template"))


def _byte_level(tokens: list[str], merges: list[str], pre: str) -> Any:
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers  # noqa: PLC0415 - as above
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - as above

    if pre not in _SPLITS:
        raise ModelError(f"tokenizer.ggml.pre is {pre!r}; known are {', '.join(sorted(_SPLITS))}")
    pairs = [(left, right) for left, right in (merge.split(" ", 1) for merge in merges)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    for left, right in pairs:  # the library would panic
        if not {left, right, left + right} <= vocabulary.keys():
            raise ModelError(
                f"tokenizer.ggml.merges has {left!r} and {right!r}; one of them, or both together, is no token"
            )
    backend = Backend(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre in _LLAMA3))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in _SPLITS[pre]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(tokens: list[str], scores: list[float], add_space_prefix: bool) -> Any:
    """Return a BPE whose merges are every way to make a token out of two, the best score first."""
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - as above
    from tokenizers import decoders, models, normalizers  # noqa: PLC0415 - as above

    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, vocabulary[left], vocabulary[right], left, right))
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    backend = Backend(models.BPE(vocab=vocabulary, merges=pairs, fuse_unk=True, byte_fallback=True))
    prefix = [normalizers.Prepend(_SPACE)] if add_space_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if add_space_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _add(backend: Any, tokens: list[str], types: list[int]) -> None:
    """Make control tokens special, and tokens of users indivisible."""
    from tokenizers import AddedToken  # noqa: PLC0415 - as above

    typed = list(zip(tokens, types, strict=True))
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in typed if k == _CONTROL])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t, k in typed if k == _USER_DEFINED])


def _begin_with(backend: Any, token: str, id: int) -> None:
    from tokenizers import processors  # noqa: PLC0415 - as above

    backend.post_processor = processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", token, "$B"], special_tokens=[(token, id)]
    )
