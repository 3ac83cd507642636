"""Text, numbers and axes inside drawings. All text from outside passes `escape`."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import Any

_SHOWN = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
# controls, surrogates, non-characters, and marks that turn the direction of what follows
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def visible(text: object) -> str:
    """The text with line ends, tabs, controls and direction marks shown as signs, so that nothing is hidden.

    >>> visible("a\\n\\x00b\\u202e")
    'a⏎␀b⟨202E⟩'
    """
    return _HIDDEN.sub(_sign, str(text))


def _sign(found: re.Match[str]) -> str:
    ch = found[0]
    return _SHOWN.get(ch) or (chr(0x2400 + ord(ch)) if ord(ch) < 32 else f"⟨{ord(ch):04X}⟩")


def escape(text: object) -> str:
    """The text as it may stand in HTML or SVG, between tags or in a quoted attribute.

    >>> escape('</script>"&')
    '&lt;/script&gt;&quot;&amp;'
    """
    return html.escape(visible(text), quote=True)


def lines_of(text: str) -> str:
    """A tooltip of several lines: each line escaped, line ends kept."""
    return "\n".join(escape(line) for line in text.split("\n"))


def short(text: object, most: int = 16) -> str:
    """The text cut to `most` characters."""
    said = visible(text)
    return said if len(said) <= most else said[: most - 1] + "…"


def number(value: Any, digits: int = 3) -> str:
    """A number for reading: `digits` significant digits, a real minus sign; "–" where there is none.

    >>> number(-0.03141), number(12345.6), number(1.2e-7), number(float("nan"))
    ('−0.0314', '12346', '1.2e−07', '–')
    """
    try:
        x = float(value)
    except (TypeError, ValueError):
        return "–"
    if not math.isfinite(x):
        return "–"
    if x == int(x) and abs(x) < 1e6:
        said = str(int(x))
    elif abs(x) >= 10**digits and abs(x) < 1e6:
        said = f"{x:.0f}"
    else:
        said = f"{x:.{digits}g}"
    return said.replace("-", "−")


def interval(low: Any, high: Any) -> str:
    """`[low, high]`, or nothing where either end is missing."""
    said = number(low), number(high)
    return "" if "–" in said else f"[{said[0]}, {said[1]}]"


def tip(where: str, value: Any, low: Any = None, high: Any = None, unit: str = "", name: str = "95%") -> str:
    """What hovering shows: the place, the value with its unit, the interval."""
    said = number(value, 4)
    lines = [where, "no value" if said == "–" else f"{said} {unit}".rstrip()]
    between = interval(low, high)
    return "\n".join(lines + ([f"{name} {between}"] if between else []))


def hover(text: str) -> str:
    """A `<title>`, which browsers show on hover."""
    return f"<title>{lines_of(text)}</title>"


def text(x: float | int, y: float | int, said: object, classes: str = "ink", more: str = "") -> str:
    """A text element."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}"{more}>{escape(said)}</text>'


def line(x1: float | int, y1: float | int, x2: float | int, y2: float | int, classes: str) -> str:
    """A line element."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{classes}"/>'


def drawing(width: float | int, height: float | int, body: Sequence[str], label: str, classes: str = "") -> str:
    """An `<svg>` of this size; `label` is what screen readers say."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{classes or "plot"}" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">{"".join(body)}</svg>'
    )


def width_of(said: object, size: float = 12.0) -> float:
    """About how wide a text is, in pixels: no font is measured, so it is reckoned as in a wide one."""
    return sum(_WIDTHS.get(ch, 1.0 if ord(ch) > 0x2E80 else 0.63) for ch in visible(said)) * size


_WIDTHS = dict.fromkeys("ilj.,:;'|!()[] ", 0.39) | dict.fromkeys("WMmw@%−→←", 0.88)


def ticks(low: float | int, high: float | int, about: int = 5) -> list[float]:
    """Round numbers that cover [low, high].

    >>> ticks(0, 1, 4), ticks(-3, 7)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [-2.0, 0.0, 2.0, 4.0, 6.0])
    """
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]


def log_ticks(low: float | int, high: float | int) -> list[float]:
    """Powers of ten inside [low, high], with 2 and 5 between them where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    wanted = (1,) if len(powers) > 4 else (1, 2, 5)
    found = [m * 10.0**p for p in powers for m in wanted]
    return [t for t in found if low * 0.999 <= t <= high * 1.001]
