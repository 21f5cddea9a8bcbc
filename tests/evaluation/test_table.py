"""A table: the same texts in the terminal, as Markdown and as HTML; what is left out where the width is short."""

import re

import pytest

from zeus_trt.evaluation.table import Column, Table

TABLE = Table(
    [
        Column("", "", lambda row: row[0]),
        Column("PSNR", "dB", lambda row: row[1], rank=1),
        Column("total", "ms (min-max)", lambda row: row[2], rank=2),
        Column("NFE", "calls", lambda row: row[3]),
    ],
    [("full", "", "90 (88-93)", "50"), ("r < 3 & more", "41.7", "40 (39-41)", "24")],
)


def test_three_outputs_have_the_same_texts():
    terminal = TABLE.to_terminal(80).splitlines()
    assert terminal[0].split() == ["PSNR", "total", "NFE"]
    assert [re.split(r"\s{2,}", line.strip()) for line in terminal[3:]] == [
        ["full", "90 (88-93)", "50"], ["r < 3 & more", "41.7", "40 (39-41)", "24"],
    ]  # fmt: skip
    assert TABLE.to_markdown().splitlines() == [
        "| run | PSNR, dB | total, ms (min-max) | NFE, calls |",
        "| --- | --- | --- | --- |",
        "| full | - | 90 (88-93) | 50 |",
        "| r < 3 & more | 41.7 | 40 (39-41) | 24 |",
    ]
    page = TABLE.to_html(pick=1)
    assert page.count("<tr>") == 2
    assert '<tr class="pick"><th scope="row">r &lt; 3 &amp; more</th><td data-head="PSNR, dB">41.7</td>' in page
    assert re.findall(r'scope="col">(.*?)</th>', page) == [
        "run", "PSNR<small>dB</small>", "total<small>ms (min-max)</small>", "NFE<small>calls</small>",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("width", "names"),
    [(60, ["", "PSNR", "total", "NFE"]), (30, ["", "PSNR", "NFE"]), (20, ["", "NFE"]), (3, ["", "NFE"])],
)
def test_columns_of_the_highest_rank_go_first(width, names):
    fitted = TABLE.fit(width)
    assert [column.name for column in fitted.columns] == names
    if width > 3:
        assert max(map(len, fitted.to_terminal(width).splitlines())) <= width


def test_texts_are_a_table_too():
    table = Table.of_texts(("claim", "agrees"), [("memory is O(1)", "yes")])
    assert table.to_markdown() == "| claim | agrees |\n| --- | --- |\n| memory is O(1) | yes |\n"
