"""How values show themselves in a notebook: a card with a title, a line of facts, figures and a table.

`_repr_html_` of models, site lists, tasks, runs, effects, attributions, circuits, plans and cells imports this when it
is called, so nothing of it loads before something is shown. Every text is escaped; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from interp.plots.colours import FONT, page_colours
from interp.plots.figure import Figure, css_for
from interp.plots.svg import escape, number, short

MOST_ROWS = 10
LONGEST = 120
"""Characters of a cell or a fact that are shown."""


def card(
    title: str,
    facts: Mapping[str, object] | None = None,
    frame: pd.DataFrame | Sequence[Mapping[str, Any]] | None = None,
    figures: Iterable[Figure] = (),
    about: str = "",
    most: int = MOST_ROWS,
) -> str:
    """HTML of one value: facts that are None are left out, of a longer frame the first `most` rows are shown."""
    said = [f"{escape(k)} <b>{escape(_plain(v))}</b>" for k, v in (facts or {}).items() if v is not None]
    drawn = list(figures)
    parts = [
        f"<style>{_style()}{css_for(''.join(f.html for f in drawn)) if drawn else ''}</style>",
        f'<div class="ic-title">{escape(title)}</div>',
    ]
    if said:
        parts.append(f'<div class="ic-facts">{" · ".join(said)}</div>')
    parts += [f.html for f in drawn]
    if frame is not None:
        parts.append(table(frame if isinstance(frame, pd.DataFrame) else pd.DataFrame.from_records(list(frame)), most))
    if about:
        parts.append(f'<div class="ic-about">{escape(about)}</div>')
    return f'<div class="ic">{"".join(parts)}</div>'


def table(frame: pd.DataFrame, most: int = MOST_ROWS) -> str:
    """The first rows of a frame; columns in which no row has a value are left out."""
    shown = frame.loc[:, [bool(frame[c].notna().any()) for c in frame.columns]].head(most)
    heads = "".join(f"<th>{escape(c)}</th>" for c in shown.columns)
    body = "".join(f"<tr>{''.join(_cell(v) for v in row)}</tr>" for row in shown.itertuples(index=False, name=None))
    more = f'<div class="ic-about">{len(shown)} of {len(frame)} rows</div>' if len(shown) < len(frame) else ""
    return f'<div class="ic-scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def largest(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Rows by the size of one column, largest first, nulls last."""
    return frame.loc[frame[by].abs().sort_values(ascending=False, kind="stable", na_position="last").index]


def _plain(value: object) -> str:
    return number(value, 4) if isinstance(value, float) else short(value, LONGEST)


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple | dict):
        return f"<td>{escape(short(value, LONGEST))}</td>"
    if value is None or pd.isna(value):
        return "<td></td>"
    if isinstance(value, bool | str):
        return f"<td>{escape(short(value, LONGEST))}</td>"
    return f'<td class="ic-n">{escape(number(value, 4))}</td>'


def _style() -> str:
    def colours(scope: str, page: Mapping[str, str]) -> str:
        return (
            f"{scope} .ic{{background:{page['paper']};color:{page['ink']};border-color:{page['rule']}}}"
            f"{scope} .ic th,{scope} .ic td{{border-color:{page['rule']};color:{page['ink']};background:none}}"
            f"{scope} .ic-facts,{scope} .ic-about{{color:{page['dim']}}}"
        )

    return (
        f".ic{{font-family:{FONT};font-size:13px;line-height:1.45;border:1px solid;border-radius:8px;"
        "padding:.6rem .8rem;max-width:100%;box-sizing:border-box}.ic-title{font-weight:600;margin-bottom:.25rem}"
        ".ic-facts{margin-bottom:.4rem}.ic-about{margin-top:.3rem;font-size:12px}.ic-scroll{overflow-x:auto}"
        ".ic table{border-collapse:collapse;font-size:12.5px;margin:0}.ic .ip{padding:.4rem 0}"
        ".ic th,.ic td{text-align:left;padding:.15rem .6rem .15rem 0;border-bottom:1px solid;white-space:nowrap}"
        ".ic .ic-n{text-align:right;font-variant-numeric:tabular-nums}"
        + colours("", page_colours(False))
        + "@media(prefers-color-scheme:dark){" + colours(":root:not([data-theme=light])", page_colours(True)) + "}"
        + colours(":root[data-theme=dark]", page_colours(True))
    )  # fmt: skip
