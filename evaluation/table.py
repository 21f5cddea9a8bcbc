"""A table of text: for the terminal, as Markdown, and as HTML."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

_NAME_LETTERS = 24  # longer names in the first column are folded on a narrow terminal
_HTML = """\
<div class="card"><table>
<thead><tr>{% for column in table.columns %}<th scope="col">{{ column.name or "run" }}\
{% if column.unit %}<small>{{ column.unit }}</small>{% endif %}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.texts %}<tr{% if loop.index0 == pick %} class="pick"{% endif %}>
{%- for text in row -%}
{% if loop.first %}<th scope="row">{{ text }}</th>{% else %}\
<td data-head="{{ table.columns[loop.index0].head }}">{{ text }}</td>{% endif %}
{%- endfor %}</tr>
{% endfor %}</tbody></table></div>
"""


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        name: Its head; "" for the name of the row.
        unit: Below it.
        read: The text of a row.
        part: A word by which columns are chosen.
        rank: Where the width is short, the highest are left out first; 0 never is.
        optional: Leave it out where no two rows have different texts.
    """

    name: str
    unit: str
    read: Callable[[Any], str]
    part: str = ""
    rank: int = 0
    optional: bool = False

    @property
    def head(self) -> str:
        """Name and unit in one line."""
        return ", ".join(part for part in (self.name, self.unit) if part)


@dataclass(frozen=True)
class Table:
    """Rows of any kind, and the columns that read them."""

    columns: Sequence[Column]
    rows: Sequence[Any]

    @classmethod
    def of_texts(cls, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
        """A table of texts."""
        return cls([Column(head, "", itemgetter(place)) for place, head in enumerate(heads)], rows)

    @property
    def texts(self) -> list[list[str]]:
        """The text of every cell, row by row."""
        return [[column.read(row) for column in self.columns] for row in self.rows]

    @property
    def width(self) -> int:
        """Letters of a line, two between columns; longer names of rows are folded."""
        texts = [(column.name, column.unit, *(column.read(row) for row in self.rows)) for column in self.columns]
        widths = [max(map(len, column)) for column in texts]
        return sum(widths) - max(widths[0] - _NAME_LETTERS, 0) + 2 * len(widths) - 2

    def fit(self, width: int) -> "Table":
        """The table without the columns of the highest ranks that do not fit into the width."""
        kept = self
        while kept.width > width:
            last = max(kept.columns, key=lambda column: column.rank)
            if last.rank == 0:
                break
            kept = Table([column for column in kept.columns if column is not last], self.rows)
        return kept

    def to_terminal(self, width: int) -> str:
        """The table in at most so many letters a line."""
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable

        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for column in self.columns:
            table.add_column(f"{column.name}\n{column.unit}", justify="right" if column.name else "left",
                             overflow="fold", no_wrap=bool(column.name))  # fmt: skip
        for row in self.texts:
            table.add_row(*row)
        text = io.StringIO()
        Console(file=text, width=width, markup=False, emoji=False, highlight=False).print(table)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def to_markdown(self) -> str:
        """The table with a line per row."""
        head = [column.head or "run" for column in self.columns]
        rows = [[text or "-" for text in row] for row in self.texts]
        return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))

    def to_html(self, pick: int | None = None) -> str:
        """The table as an escaped element of the report; row ``pick`` is marked."""
        from jinja2 import Environment

        environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(_HTML).render(table=self, pick=pick)
