"""The report's page: whole in itself, readable on a phone, and shown by a browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from toy_subject import ToyEngine, make_subject

from zeus_trt.evaluation.compare import compare
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.plots import find_front
from zeus_trt.evaluation.variants import Grid, make_variants

BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "google-chrome-stable")
IMAGES = 3 + 2 * 10 * 3  # plots; full, skipped and difference of ten samples for two rows
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(digits_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    subject = make_subject(digits_bundle("unet-flow"), onnxruntime=ToyEngine())
    variants = make_variants(subject.workload, Grid(ratios=(2, 4), steps=(10,)))
    compare(subject, variants, MeasureOptions(num_images=10, rounds=1), output=folder)
    return folder / "report.html"


def test_the_page_needs_nothing_else(page):
    reader = Reader()
    reader.feed(page.read_text())
    assert reader.open == []
    names = {tag for tag, _ in reader.tags}
    assert not names & {"link", "iframe", "object", "video", "base"}
    assert not [attrs for tag, attrs in reader.tags if tag == "script" and attrs]
    images = [attrs for tag, attrs in reader.tags if tag == "img"]
    assert len(images) == IMAGES
    assert all(attrs["src"].startswith("data:image/png;base64,") and attrs["alt"] for attrs in images)
    assert not [attrs for tag, attrs in reader.tags if tag != "img" and ("src" in attrs or "href" in attrs)]
    assert "url(" not in page.read_text()
    assert "@import" not in page.read_text()
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in reader.tags


def test_the_page_has_the_rows(page):
    text = page.read_text()
    assert re.findall(r'<th scope="row">(.*?)</th>', text) == ["full", "r = 2", "r = 4"] * 2  # speed, quality


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_whole(page, tmp_path, width):
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if not browser:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    probe = (
        "<script>document.title = [document.documentElement.scrollWidth <= innerWidth,"
        "[...document.querySelectorAll('.card, td, .look, pre')].every(e => e.scrollWidth <= e.clientWidth + 1),"
        "[...document.images].every(i => i.complete && i.naturalWidth > 0), document.images.length].join()</script>"
    )
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text().replace("</body>", f"{probe}</body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},844", "--dump-dom"]
    command.append(f"--user-data-dir={tmp_path / 'profile'}")
    done = subprocess.run([*command, probed.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert f"<title>true,true,true,{IMAGES}</title>" in done.stdout, done.stderr[-2000:] + done.stdout[:500]


def test_the_front_is_what_no_point_beats():
    points = [(1.0, 50.0), (2.0, 40.0), (1.5, 30.0), (2.5, 20.0), (2.0, 39.0)]
    assert find_front(points) == [(1.0, 50.0), (2.0, 40.0), (2.5, 20.0)]
    assert find_front([]) == []
