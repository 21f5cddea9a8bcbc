"""Mutated files: every reader returns, or raises ZeusError with a message of one line and no control character."""

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import mutate
from readers import READERS

from zeus_trt.errors import ZeusError

pytestmark = pytest.mark.usefixtures("one_thread")


def attack(reader, folder, examples):
    path = reader.write(folder / "good")
    place, content = path.relative_to(folder / "good"), path.read_bytes()
    refused, tried = [], []

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=HealthCheck)
    @given(data=st.data())
    def run(data):
        shutil.rmtree(folder / "bad", ignore_errors=True)
        shutil.copytree(folder / "good", folder / "bad")
        (folder / "bad" / place).write_bytes(data.draw(mutate(content)))
        tried.append(1)
        try:
            reader.read(folder / "bad" / place)
        except ZeusError as error:
            assert str(error).isprintable()  # noqa: PT017 (files that are read are right as well)
            refused.append(1)

    run()
    assert len(tried) >= examples
    assert refused or reader.takes_anything


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_few_mutations_of_every_file(reader, tmp_path):
    attack(reader, tmp_path, 10)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_many_mutations_of_every_file(reader, tmp_path):
    attack(reader, tmp_path, 300)
