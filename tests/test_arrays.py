"""Files of arrays: what does not read is one sentence, and costs no memory that the file does not have."""

import io
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from zeus_trt.arrays import read_arrays, read_tensors
from zeus_trt.errors import ZeusError


def write(path, **members: bytes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def to_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_arrays_come_back(tmp_path):
    given = {"a": np.arange(6.0).reshape(2, 3), "b": np.array("text"), "c": np.array(True), "d": np.zeros((0, 2), int)}
    np.savez_compressed(tmp_path / "file.npz", **given)
    found = read_arrays(tmp_path / "file.npz", "arrays")
    assert found.keys() == given.keys()
    assert all(np.array_equal(found[name], given[name]) for name in given)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_tensors_come_back(tmp_path, suffix):
    given, path = (
        {"a": torch.arange(6).reshape(2, 3), "b": torch.ones(2, dtype=torch.float16)},
        tmp_path / f"f.{suffix}",
    )
    if suffix == "npz":
        np.savez(path, **{name: value.numpy() for name, value in given.items()})
    else:
        save_file(given, path)
    found = read_tensors(path, "conditioning")
    assert all(torch.equal(found[name], given[name]) for name in given)


BAD = {
    "a petabyte": header("(1000000000, 1000000)"),
    "more digits than a number": header(f"({'9' * 400},)"),
    "a negative size": header("(-1,)") + bytes(8),
    "fewer numbers than it says": header("(3,)") + bytes(16),
    "more numbers than it says": header("(1,)") + bytes(16),
    "objects": header("(2,)", "'|O'") + bytes(16),
    "a structure": header("(1,)", "[('a', '<f8')]") + bytes(8),
    "complex numbers": to_bytes(np.zeros(2, complex)),
    "code in a header": header("__import__('os')"),
    "no array": b"text",
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arrays_are_refused(tmp_path, name):
    path = write(tmp_path / "file.npz", a=BAD[name])
    with pytest.raises(ZeusError, match=r"arrays: got .* which cannot be read \(.+\); expected an npz file"):
        read_arrays(path, "arrays")


def test_unpacked_size_has_a_limit(tmp_path):
    path = write(tmp_path / "bomb.npz", a=to_bytes(np.zeros(1_000_000)))
    assert path.stat().st_size < 20_000
    assert read_arrays(path, "arrays")["a"].size == 1_000_000
    with pytest.raises(ZeusError, match="more than 1000000"):
        read_arrays(path, "arrays", limit=1_000_000)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"PK"])
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_bad_files_are_refused(tmp_path, content, suffix):
    path = tmp_path / f"file.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ZeusError, match="conditioning: got"):
        read_tensors(path, "conditioning")
    with pytest.raises(ZeusError, match="conditioning: got"):
        read_tensors(tmp_path / f"absent.{suffix}", "conditioning")
    np.savez(tmp_path / "text.npz", a=np.array("text"))
    with pytest.raises(ZeusError, match="got text in a"):
        read_tensors(tmp_path / "text.npz", "conditioning")
