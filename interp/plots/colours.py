"""Colours of figures, as classes: one drawing, a light and a dark palette.

Values: a diverging scale centred at 0, blue above and orange below, whose lightness falls (light page) or rises
(dark page) on both sides, so that it reads without hue; blue and orange stay apart for protan, deutan and tritan
eyes. `level` quantises to 25 steps a side: finer than the eye tells side by side, and a class instead of a colour
keeps pages small. Lines: Okabe & Ito 2008 without its yellow; dashes tell them apart too.
"""

from __future__ import annotations

import math

STEPS = 25

_POSITIVE = ("#f4f5f6", "#cfe1f0", "#8fbfe0", "#4591c9", "#1f64a8", "#0a3a70")
_NEGATIVE = ("#f4f5f6", "#fbe2bf", "#f7bc70", "#e18a22", "#b35c06", "#7a3a04")
_POSITIVE_DARK = ("#23282f", "#1e3d5c", "#26608f", "#3f8cc6", "#7dbdea", "#c9e6fb")
_NEGATIVE_DARK = ("#23282f", "#4a3418", "#7c4e12", "#b9741b", "#eda84f", "#fcdcae")

_LINES = ("#0072b2", "#d55e00", "#009e73", "#b5568f", "#3a9bd9", "#a87900", "#555b63")
_LINES_DARK = ("#4aa8e0", "#f08a3c", "#2fc69b", "#e08fc0", "#8fd0f5", "#e6b93a", "#a9b1bb")
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "", "6 3", "2 3")

LINE_STYLES = len(_LINES)

_LIGHT = {"ink": "#1c2127", "dim": "#5a6470", "rule": "#d5dae0", "paper": "#ffffff"}
_DARK = {"ink": "#e7eaee", "dim": "#a2abb6", "rule": "#3b424b", "paper": "#171a1f"}

FONT = 'Inter,"Helvetica Neue",Helvetica,Arial,"Liberation Sans","DejaVu Sans",sans-serif'


def level(value: float, limit: float) -> str:
    """Class of a value on the scale that ends at ±limit: `p0` … `p25`, `n1` … `n25`; `na` where it is no number."""
    if not math.isfinite(value):
        return "na"
    step = 0 if limit <= 0 else min(STEPS, round(abs(value) / limit * STEPS))
    return f"{'n' if value < 0 and step else 'p'}{step}"


def strong(value: float, limit: float) -> bool:
    """Whether the colour of this value is so strong that text on it must be the paper's colour."""
    return bool(math.isfinite(value) and limit > 0 and abs(value) / limit > 0.66)


def rgb(value: float, limit: float) -> tuple[int, int, int]:
    """The light palette's colour as red, green, blue: for pictures made of pixels."""
    if not math.isfinite(value):
        return (255, 255, 255)
    share = 0.0 if limit <= 0 else min(1.0, abs(value) / limit)
    return _between(_NEGATIVE if value < 0 else _POSITIVE, share)


def _between(stops: tuple[str, ...], share: float) -> tuple[int, int, int]:
    place = share * (len(stops) - 1)
    i = min(int(place), len(stops) - 2)
    one, other = ([int(s[k : k + 2], 16) for k in (1, 3, 5)] for s in (stops[i], stops[i + 1]))
    red, green, blue = (round(a + (b - a) * (place - i)) for a, b in zip(one, other, strict=True))
    return red, green, blue


def _hex(stops: tuple[str, ...], step: int) -> str:
    return "#{:02x}{:02x}{:02x}".format(*_between(stops, step / STEPS))


def _palette(scope: str, dark: bool) -> str:
    page = _DARK if dark else _LIGHT
    positive, negative = (_POSITIVE_DARK, _NEGATIVE_DARK) if dark else (_POSITIVE, _NEGATIVE)
    rules = [f"{scope} .p{i}{{fill:{_hex(positive, i)};background:{_hex(positive, i)}}}" for i in range(STEPS + 1)]
    rules += [f"{scope} .n{i}{{fill:{_hex(negative, i)};background:{_hex(negative, i)}}}" for i in range(1, STEPS + 1)]
    for i, colour in enumerate(_LINES_DARK if dark else _LINES):
        rules.append(f"{scope} .f{i}{{fill:{colour}}}{scope} .s{i}{{stroke:{colour}}}")
    edge = (positive[4] if dark else positive[3], negative[4] if dark else negative[3])
    rules += [
        f"{scope} .ink{{fill:{page['ink']};color:{page['ink']}}}", f"{scope} .dim{{fill:{page['dim']}}}",
        f"{scope} .on{{fill:{page['paper']};color:{page['paper']}}}", f"{scope} .rule{{stroke:{page['rule']}}}",
        f"{scope} .axis{{stroke:{page['dim']}}}", f"{scope} .paper{{fill:{page['paper']}}}",
        f"{scope} .halo{{stroke:{page['paper']}}}",
        f"{scope} .na{{fill:{page['paper']};stroke:{page['rule']};stroke-dasharray:2 2}}",
        f"{scope} .box{{fill:{page['paper']};stroke:{page['dim']}}}",
        f"{scope} .up{{stroke:{edge[0]}}}{scope} .down{{stroke:{edge[1]}}}",
        f"{scope} .upfill{{fill:{edge[0]}}}{scope} .downfill{{fill:{edge[1]}}}",
    ]  # fmt: skip
    return "".join(rules)


_SHAPES = "".join(f"{{0}} .s{i}{{{{stroke-dasharray:{d or 'none'}}}}}" for i, d in enumerate(_DASHES)) + (
    "{0} text{{font-family:" + FONT + ";font-size:12px}}{0} .small{{font-size:10.5px}}{0} .head{{font-weight:600}}"
    "{0} .mid{{text-anchor:middle}}{0} .end{{text-anchor:end}}{0} .line{{fill:none;stroke-width:2}}"
    "{0} .band{{opacity:.16}}{0} .rule,{0} .axis{{stroke-width:1;fill:none}}{0} .edge{{fill:none;stroke-linecap:round}}"
    "{0} .halo{{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}}"
    "{0} .ci{{stroke-width:2;stroke-dasharray:none}}"
)


def style(scope: str = "") -> str:
    """CSS of a drawing that stands alone: the light palette."""
    return _SHAPES.format(scope) + _palette(scope, dark=False)


def themed(scope: str) -> str:
    """CSS of drawings inside `scope` in a page: light, and dark where the reader wants it or `data-theme` says so."""
    dark = _palette(f":root[data-theme=dark] {scope}", dark=True)
    auto = _palette(f":root:not([data-theme=light]) {scope}", dark=True)
    return f"{style(scope)}@media(prefers-color-scheme:dark){{{auto}}}{dark}"


def page_colours(dark: bool) -> dict[str, str]:
    """Ink, dim, rule and paper of a page that figures stand on."""
    return dict(_DARK if dark else _LIGHT)
