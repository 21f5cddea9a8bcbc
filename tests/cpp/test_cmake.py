"""find_package(zeus_trt) from the checkout; ``test_packaging`` has it from a wheel."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from cpp_driver import CPP, check_cmake

import zeus_trt
from zeus_trt.cli import main


@pytest.mark.extra
def test_cmake_finds_the_headers(tmp_path):
    folder = CliRunner().invoke(main, ["cmake-dir"]).stdout.strip()
    assert Path(folder) == CPP
    check_cmake(folder, tmp_path)


def test_the_version_is_that_of_the_package():
    found = re.search(r"PACKAGE_VERSION (\S+)\)", (CPP / "zeus_trtConfigVersion.cmake").read_text())
    assert found
    assert found[1] == zeus_trt.__version__


@pytest.mark.parametrize("header", sorted((CPP / "zeus_trt").glob("*.hpp")), ids=lambda path: path.name)
def test_a_header_is_under_500_lines(header):
    assert len(header.read_text().splitlines()) < 500
