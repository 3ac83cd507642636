"""Circuits that are known: what discovery methods are judged by.

    planted      built by hand and hidden: an induction circuit, and logic gates in MLPs (`planted.py`)
    tracr        RASP programs compiled by Tracr, with true edges read off the weights (`tracr.py`, extra `compiled`)
    induction    the two published 2-layer models, by the path of their folder (`induction.py`)
    toy_ioi      the circuit found in the embedded model (`toy_ioi.py`)

`known_circuit(name)` builds one; `names()` lists them.
"""

from __future__ import annotations

from interp.circuits.known.registry import Known, known_circuit, names, register_known

__all__ = ["Known", "known_circuit", "names", "register_known"]
