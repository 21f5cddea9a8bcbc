"""Every reader reads what its writer wrote, and answers aimed files with one sentence."""

import shutil

import pytest
from readers import READERS

from zeus_trt.errors import ZeusError

pytestmark = pytest.mark.usefixtures("one_thread")
BRACKETS = 200_000
AIMED = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "text": b'"F"',
    "a number": b"1e400",
    "400 digits": b"9" * 400,
    "deep lists": b"[" * BRACKETS,
    "deep objects": b'{"format":' * BRACKETS,
    "no UTF-8": b"\xff\xfe\x00",
    "zeros": b"\0" * 4096,
    "a large header": b"\xff" * 8 + b"{}",
    "pickle": b"cos\nsystem\n(S'false'\ntR.",
    "an empty archive": b"PK\x05\x06" + b"\0" * 18,
}


def is_refused(reader, path) -> bool:
    """Whether the reader raises ZeusError with one line; whatever else it raises is a fault."""
    try:
        reader.read(path)
    except ZeusError as error:
        assert str(error).isprintable()  # noqa: PT017 (whether it raises is the answer)
        return True
    return False


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_good_files_are_read_and_aimed_ones_refused(reader, tmp_path):
    path = reader.write(tmp_path / "good")
    assert not is_refused(reader, path)
    for name, content in AIMED.items():
        folder = shutil.copytree(tmp_path / "good", tmp_path / name)
        file = folder / path.relative_to(tmp_path / "good")
        file.write_bytes(content)
        assert is_refused(reader, file) or reader.takes_anything, name


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_cut_files_are_refused(reader, tmp_path):
    path = reader.write(tmp_path / "good")
    content = path.read_bytes()
    for share in (0.1, 0.5, 0.9):
        path.write_bytes(content[: int(share * len(content))])
        is_refused(reader, path)
