"""Figures from arrays and frames: a `Figure` shows itself in notebooks and pages, and saves as SVG or PNG.

    heatmap        values over rows × columns, with intervals; centred at 0
    lines          curves over x, with their bands
    bars           numbers side by side, with their intervals
    attention      patterns of several heads
    tokens         values on text
    circuit_graph  edges between heads and MLPs, layers as rows

Plain SVG with classes for the colours, so that one drawing serves light and dark pages. No torch is imported:
tensors are taken as whatever numpy can read. Every text from outside is escaped (`svg.escape`).
"""

from interp.plots.attention import attention
from interp.plots.bars import bars
from interp.plots.circuit_graph import circuit_graph
from interp.plots.figure import Figure
from interp.plots.heatmap import heatmap
from interp.plots.lines import lines
from interp.plots.tokens import tokens

__all__ = ["Figure", "attention", "bars", "circuit_graph", "heatmap", "lines", "tokens"]
