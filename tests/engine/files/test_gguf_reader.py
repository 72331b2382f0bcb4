"""The quicker reader reads what the package's own does."""

from pathlib import Path

import numpy
from gguf import GGUFReader, GGUFWriter

from onbeat_engine.files.gguf_reader import Reader


def test_it_reads_what_the_package_s_reader_does(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_token_list(["a", "é", "", "<|end|>"])
    writer.add_token_scores([0.5, -1.0, 2.0, 0.0])
    writer.add_tensor("token_embd.weight", numpy.arange(12, dtype=numpy.float32).reshape(4, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = Reader(path), GGUFReader(path)
    assert list(ours.fields) == list(theirs.fields)
    for name, field in theirs.fields.items():
        assert ours.fields[name].contents() == field.contents()
        assert ours.fields[name].types == field.types
    (tensor,) = ours.tensors
    assert tensor.data.tolist() == theirs.tensors[0].data.tolist()
    assert not tensor.data.flags.writeable
    pieces = [part for field in ours.fields.values() for part in field.parts]
    assert {type(piece) for piece in (tensor.data, *pieces)} == {numpy.ndarray}
