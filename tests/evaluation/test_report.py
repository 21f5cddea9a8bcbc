"""A report: its picture carries the table's marks, its page the command, the scale and the dB of every image."""

import html
import re
import shlex
from dataclasses import replace

import pytest
import torch
from toy_subject import ToyEngine, make_subject

from zeus_trt import comparing
from zeus_trt.evaluation import report
from zeus_trt.evaluation.compare import compare
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.report import write_report
from zeus_trt.evaluation.row import Speedup
from zeus_trt.evaluation.variants import Grid, make_variants
from zeus_trt.pictures import draw_grid, draw_levels, list_colours, measure_levels
from zeus_trt.repeat import write_command


@pytest.fixture(scope="module")
def bundle(digits_bundle):
    return digits_bundle("unet-flow")


@pytest.fixture(scope="module")
def comparison(bundle):
    subject = make_subject(bundle)
    variants = make_variants(subject.workload, Grid(ratios=(2, 4), steps=(10,)))
    return compare(subject, variants, MeasureOptions(num_images=2, rounds=1))


def test_the_picture_carries_the_marks_of_the_table(comparison, tmp_path, monkeypatch):
    full, wrong, hidden = comparison.rows
    wrong = replace(wrong, speedup=Speedup(3.0, 3.0, 3.0, 3.0, 3.0, 9), marks="!~")
    hidden = replace(hidden, speedup=Speedup(1.2, 0.5, 2.0, 0.5, 2.0, 9), marks="")
    drawn = []
    monkeypatch.setattr(report, "draw_grid", lambda rows, notes: drawn.append((rows, notes)) or draw_grid(rows, notes))
    images = dict(enumerate(torch.linspace(-1, 1, 3 * 2 * 32 * 32).reshape(3, 2, 1, 32, 32)))
    write_report(replace(comparison, rows=(full, wrong, hidden)), images, tmp_path)
    ((rows, notes),) = drawn
    labels = list(rows)
    assert re.fullmatch(r"r = 2: 6 calls\n[\d.]+ dB, 3\.00x !~", labels[1])
    assert re.fullmatch(r"r = 4: 5 calls\n[\d.]+ dB, speed not measurable here", labels[2])
    assert [note.split()[0] for note in notes] == ["!", "~", "not"]
    page = html.unescape((tmp_path / "report.html").read_text())
    assert all(note in page for note in notes)


def test_long_labels_and_notes_are_not_cut():
    pixels = torch.full((1, 1, 32, 32), -1.0)  # black pictures: everything else that is dark is text
    paper = (250, 250, 250)
    label = "r = 2, zeus-previous-full, 50 steps, dpmpp-2m, onnxruntime: 27 calls\n57.5 dB, speed not measurable here"
    long, short = (draw_grid({text: pixels}, ["! a note that is longer than the picture is wide"] * 2)
                   for text in (label, "full"))  # fmt: skip
    assert long.height > short.height
    for picture in (long, short):
        frame = [(x, y) for x in range(picture.width) for y in (0, picture.height - 1)]
        frame += [(x, y) for y in range(picture.height) for x in (0, picture.width - 1)]
        assert {picture.getpixel(place) for place in frame} == {paper}


def test_the_colours_of_a_difference_are_those_of_its_scale():
    full = torch.zeros(1, 3, 2, 2)
    images = full.clone()
    images[0, 1, 0, 0], images[0, 2, 0, 1] = -2 / 127.5, 9.0  # the channel that differs most; clamped to the range
    levels = measure_levels(full, images)
    assert levels.tolist() == [[[pytest.approx(2), pytest.approx(127.5)], [0, 0]]]
    (picture,) = draw_levels(levels, top=2)
    colours = list_colours()
    for place, colour in (((1, 1), colours[0]), ((0, 0), colours[-1]), ((1, 0), colours[-1])):
        assert picture.getpixel(place) == pytest.approx(tuple(bytes.fromhex(colour[1:])), abs=1)  # rounded
    video = torch.zeros(1, 3, 1, 2, 2)
    assert measure_levels(video, video).shape == (1, 2, 2)


def test_the_page_says_how_to_repeat_it_and_shows_every_image(bundle, tmp_path):
    output = tmp_path / "it's <here>"
    done = comparing.compare(bundle, ratios=(2,), steps=(6,), num_images=3, rounds=1, labels=(1, 2), output=output)
    page = (output / "report.html").read_text()
    assert "<here>" not in page
    command = html.unescape(re.search(r"<pre>(.*?)</pre>", page, re.DOTALL)[1])
    assert shlex.split(command) == [
        "zeus-trt", "compare", str(bundle), "--ratios", "2", "--steps", "6", "--num-images", "3", "--rounds", "1",
        "--labels", "1,2", "--output", str(output),
    ]  # fmt: skip
    shown = re.findall(r"<figcaption>([\d.]+) dB</figcaption>", page)
    assert [float(text) for text in shown] == [round(psnr, 1) for psnr in done.rows[1].image_psnr_db]
    assert re.search(r"linear-gradient\(to right, #\w{6}, .*?<span>0</span><span>", page, re.DOTALL)
    assert html.unescape(re.search(r"<h1>(.*?)</h1>", page)[1]).replace("\u00a0", " ") == done.to_json()["verdict"]
    heads = re.findall(r'<th scope="col">(.*?)</th>', page)
    assert all("<small>" in head or head == "run" for head in heads), heads


def test_a_command_is_quoted_and_leaves_defaults_out():
    def function(output, num_images=4, peers=()):
        """As a library function has it."""

    assert write_command("demo", function, output="a b", num_images=4) == "zeus-trt demo --output 'a b'"
    assert write_command("x", function, output=None, num_images=5, peers=("a", "b")) == (
        "zeus-trt x --num-images 5 --peers a,b"
    )


def test_a_row_that_is_added_later_gets_its_full_runs_beside_it(bundle, tmp_path):
    def run(ratios, engine):
        subject = make_subject(bundle, onnxruntime=engine)
        variants = make_variants(subject.workload, Grid(ratios=ratios, steps=(10,)))
        return compare(subject, variants, MeasureOptions(1, rounds=2, trajectories=False), output=tmp_path)

    run((2,), ToyEngine())
    engine = ToyEngine()
    added = run((2, 4), engine)
    assert engine.calls == 2 + 2 * (10 + 5)  # the warm-up, then the new row and the full run, twice; not r = 2
    assert [row.speedup.num_rounds for row in added.rows[1:]] == [2, 2]
    assert run((2, 4), engine).to_json() == added.to_json()
    assert engine.calls == 2 + 2 * (10 + 5)
