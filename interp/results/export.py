"""Tables for reading: a summary of a frame, and the summary as CSV, Markdown or LaTeX."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from interp.registry import unknown
from interp.results.schemas import Schema

FORMATS = ("csv", "parquet", "markdown", "latex")
_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def has_points(frame: pd.DataFrame) -> bool:
    """Whether a table has figures of the whole beside points along some x."""
    return "x_name" in frame and bool(frame["x_name"].isna().any() and frame["x_name"].notna().any())


def ranked(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Rows by the size of the schema's main column, largest first; ties keep the key's order.

    Where a table has figures of the whole beside points along some x, the figures come first, in the key's order:
    their units differ, so that their sizes say nothing.
    """
    if schema.main not in frame:
        return frame
    order = frame[schema.main].abs().sort_values(ascending=False, kind="stable", na_position="last").index
    if not has_points(frame):
        return frame.loc[order]
    along = frame["x_name"].notna()
    return pd.concat([frame[~along], frame.loc[order[along[order].to_numpy()]]])


def summary(frame: pd.DataFrame, schema: Schema, most: int | None = None) -> pd.DataFrame:
    """Columns that are not all null, numbers to five digits; the `most` rows largest in size, in key order."""
    kept = frame if most is None or len(frame) <= most else ranked(frame, schema).head(most).sort_index()
    kept = kept.dropna(axis=1, how="all")
    return kept.assign(**{c: [_rounded(v) for v in kept[c]] for c in kept.select_dtypes("float64").columns})


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def export(frame: pd.DataFrame, schema: Schema, to: str, path: Path | None = None) -> str | None:
    """The table as `csv`, `markdown` or `latex` text (written to `path` where given), or `parquet` at `path`.

    CSV and Parquet have every number in full; Markdown and LaTeX are for reading.
    """
    if to not in FORMATS:
        raise unknown("format", to, list(FORMATS))
    if to == "parquet":
        from interp.results.store import write_parquet

        if path is None:
            raise ValueError("parquet is no text: it needs a file to go to")
        write_parquet(path, frame, schema)
        return None
    if to == "csv":
        buffer = io.StringIO()
        frame.to_csv(buffer, index=False, lineterminator="\n")
        text = buffer.getvalue()
    else:
        text = (markdown if to == "markdown" else latex)(summary(frame, schema))
    if path is None:
        return text
    path.write_text(text, encoding="utf-8")
    return None


def _cells(frame: pd.DataFrame) -> list[list[str]]:
    return [["" if pd.isna(v) else f"{v:.5g}" if isinstance(v, float) else str(v) for v in row]
            for row in frame.itertuples(index=False)]  # fmt: skip


def markdown(frame: pd.DataFrame) -> str:
    """A GitHub table; pipes and line ends in values are escaped."""
    rows = [list(frame.columns), ["---"] * len(frame.columns), *_cells(frame)]
    safe = [[c.replace("|", "\\|").replace("\n", " ") for c in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in safe)


def latex(frame: pd.DataFrame) -> str:
    """A `tabular` with booktabs rules; TeX's own characters in values are escaped."""
    rows = [list(frame.columns), *_cells(frame)]
    lines = [" & ".join("".join(_TEX.get(ch, ch) for ch in cell) for cell in row) + r" \\" for row in rows]
    body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
    return f"\\begin{{tabular}}{{{'l' * len(frame.columns)}}}\n{body}\n\\end{{tabular}}\n"
