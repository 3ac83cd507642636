"""A figure: a drawing with its title, that shows itself in a notebook and saves itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from interp.plots.colours import FONT, page_colours, style, themed
from interp.plots.svg import escape
from interp.registry import UserError

SUFFIXES = (".svg", ".png", ".html")
SCALE = 2.0


@dataclass(frozen=True, repr=False)
class Figure:
    """A drawing. `narrow` is the same for a phone's width, where the wide one would be too small to read."""

    drawing: str
    """An `<svg>` whose colours are classes."""
    title: str = ""
    about: str = ""
    """A line under the drawing: what is shown, and what is not."""
    narrow: str | None = None
    text: str | None = None
    """HTML to show instead of the drawing in pages and notebooks, where text should wrap."""

    def __repr__(self) -> str:
        """One line, in the place of a drawing's thousands of letters."""
        return f"<figure {self.title or 'without a title'!r}: .save(…) writes {', '.join(SUFFIXES)}>"

    @property
    def svg(self) -> str:
        """The drawing alone, with its colours: a whole SVG file, on white."""
        head, rest = self.drawing.split(">", 1)
        return f'{head}><style>{style()}</style><rect width="100%" height="100%" fill="#fff"/>{rest}'

    @property
    def html(self) -> str:
        """A `<figure>` for a page that has `css()` in its head."""
        if self.text is not None:
            shown = f'<div class="ip-scroll">{self.text}</div>'
        elif self.narrow is not None:
            wide, narrow = (f'<div class="ip-scroll ip-{n}">' for n in ("wide", "narrow"))
            shown = f"{wide}{self.drawing}</div>{narrow}{self.narrow}</div>"
        else:
            shown = f'<div class="ip-scroll">{self.drawing}</div>'
        head = f'<figcaption class="ip-title">{escape(self.title)}</figcaption>' if self.title else ""
        foot = f'<p class="ip-about">{escape(self.about)}</p>' if self.about else ""
        return f'<figure class="ip">{head}{shown}{foot}</figure>'

    def _repr_html_(self) -> str:
        """For a notebook: the figure with its style."""
        return f"<style>{css_for(self.html)}</style>{self.html}"

    def png(self, scale: float = SCALE) -> bytes:
        """The drawing as PNG, `scale` pixels for a unit of the SVG."""
        import vl_convert

        return bytes(vl_convert.svg_to_png(self.svg, scale=scale))

    def save(self, path: str | Path) -> Path:
        """Write .svg, .png or .html; another ending raises UserError."""
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise UserError(f"figures are written as {', '.join(SUFFIXES)}, got {path.name!r}")
        if path.suffix == ".png":
            path.write_bytes(self.png())
        else:
            said = self.svg if path.suffix == ".svg" else f'<!doctype html><meta charset="utf-8">{self._repr_html_()}'
            path.write_text(said, encoding="utf-8")
        return path


def css_for(html: str) -> str:
    """`css` without the colour steps that this HTML does not use: a notebook holds a copy with every figure."""
    used = set(re.findall(r"\b[pn]\d+\b", html))
    return re.sub(r"[^{}]*\.([pn]\d+)\{[^{}]*\}", lambda rule: rule[0] if rule[1] in used else "", css())


def css() -> str:
    """Style of every figure of a page; once a page is enough."""
    light, dark = page_colours(False), page_colours(True)

    def colours(scope: str, page: dict[str, str]) -> str:
        return f"{scope}{{background:{page['paper']};color:{page['ink']}}}{scope} .ip-about{{color:{page['dim']}}}"

    return (
        f".ip{{margin:0 0 1rem;padding:.75rem 1rem;border-radius:8px;max-width:100%;box-sizing:border-box;"
        f"font-family:{FONT};font-size:14px;line-height:1.45}}"
        ".ip-title{contain:inline-size;font-weight:600;margin:0 0 .5rem}.ip-about"
        "{contain:inline-size;margin:.4rem 0 0;font-size:12.5px}"
        ".ip-scroll{overflow-x:auto;max-width:100%}.ip svg{display:block}.ip-narrow{display:none}"
        "@media(max-width:640px){.ip{padding:.6rem .5rem}.ip-wide{display:none}.ip-narrow{display:block}}"
        + colours(".ip", light)
        + "@media(prefers-color-scheme:dark){" + colours(":root:not([data-theme=light]) .ip", dark) + "}"
        + colours(":root[data-theme=dark] .ip", dark)
        + themed(".ip")
    )  # fmt: skip
