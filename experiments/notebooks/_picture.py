"""`python -m experiments.notebooks._picture`: the picture of the README, `first_circuit.svg`.

Left: the effect of every head of toy-ioi on the IOI task, patched from the clean into the corrupt prompts. Right: the
edges that explain the behaviour, of the 30 best those on a path. Both as in the notebook *first_circuit*.
"""

from __future__ import annotations

import re
from pathlib import Path

PLACE = Path(__file__).with_name("first_circuit.svg")
GAP = 24.0


def draw() -> str:
    """The picture as SVG."""
    import interp
    from interp.circuits.discover import discover

    model = interp.load_model("toy-ioi")
    task = interp.load_task("ioi", model, n=64, seed=0)
    effects = interp.patch(model, task, sites="z", by="head")
    discovery, _ = task.split(0.5, seed=0)
    circuit = discover(model, discovery, "eap_ig_inputs", size=30).circuit
    return beside(effects.heatmap().svg, circuit.draw().svg)


def beside(*drawings: str) -> str:
    """Drawings side by side, in the middle of the tallest."""
    sizes = [tuple(float(n) for n in re.findall(r' (?:width|height)="([\d.]+)"', d)[:2]) for d in drawings]
    height = max(h for _, h in sizes)
    body, x = [], 0.0
    for drawing, (w, h) in zip(drawings, sizes, strict=True):
        body.append(f'<g transform="translate({x:.0f} {(height - h) / 2:.0f})">{drawing}</g>')
        x += w + GAP
    width = x - GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}"><rect width="100%" height="100%" fill="#fff"/>{"".join(body)}</svg>\n'
    )


if __name__ == "__main__":
    PLACE.write_text(draw(), encoding="utf-8")
    print(PLACE)
