"""The bundles that tests share stay while another checkout's run may be reading them."""

import os
import time

import bundle_cache
import pytest


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUS_TRT_TEST_CACHE", str(tmp_path))
    monkeypatch.setattr(bundle_cache, "digest_all", lambda: "mine")
    for age in range(bundle_cache.KEPT + 2):
        folder = tmp_path / f"other{age}"
        folder.mkdir()
        os.utime(folder, (time.time() - 3600 * age - 60,) * 2)
    return tmp_path


def test_only_old_folders_go(root):
    bundle_cache.open_cache.__wrapped__()
    left = sorted(one.name for one in root.iterdir() if one.is_dir())
    assert left == ["mine", *(f"other{age}" for age in range(bundle_cache.KEPT - 1))]


def test_a_folder_in_use_stays_whatever_its_number(root):
    for folder in root.iterdir():
        os.utime(folder)
    bundle_cache.open_cache.__wrapped__()
    assert len([one for one in root.iterdir() if one.is_dir()]) == bundle_cache.KEPT + 3


def test_a_folder_that_went_is_made_again(root, monkeypatch):
    monkeypatch.setattr(bundle_cache, "open_cache", lambda: root / "gone")
    made = bundle_cache.fetch_bundle("name", lambda path: path.mkdir(), root / "copy")
    assert made.is_dir()
    assert (root / "gone" / "name").is_dir()
