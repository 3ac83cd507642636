"""Circuit files, spoilt: a circuit of this model comes out, or a UserError."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_input import JSON, many, parses_or_says, spoilt
from hypothesis import example, given
from hypothesis import strategies as st

from interp.circuits.files import found_on, from_json, graphml, load_circuit, to_json
from interp.circuits.values import Circuit
from interp.graph import Edge, Graph, Node, Slot
from tests.tiny import tiny

pytestmark = pytest.mark.long

GEOMETRY = tiny("llama").geometry
GRAPH = Graph(GEOMETRY, ungrouped=True)


def circuit() -> Circuit:
    g = torch.Generator().manual_seed(0)
    shape = (len(GRAPH.sources), len(GRAPH.slots))
    possible = torch.tensor([[u < GRAPH.upstream(s) for s in GRAPH.slots] for u in range(shape[0])])
    mask = (torch.rand(shape, generator=g) < 0.1) & possible
    return Circuit(GRAPH, mask, torch.randn(shape, generator=g, dtype=torch.float64) * possible)


MIB = json.dumps({**to_json(circuit()), "discovered_on": ["abc"]}).encode()
XML = graphml(circuit()).encode()
BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + b"".join(
    b'<!ENTITY %c "%s">' % (98 + i, b"&%c;" % (97 + i) * 20) for i in range(9)
) + b"]><graphml>&j;</graphml>"  # fmt: skip
OUTSIDE = b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><graphml><graph id="&a;"/></graphml>'


@many
@given(spoilt(MIB), st.just(".json"))
@example(BOMB, ".graphml")
@example(OUTSIDE, ".graphml")
def test_json(content: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c" + suffix)
        path.write_bytes(content)
        read = parses_or_says(lambda: load_circuit(path, GEOMETRY))
        digests = parses_or_says(lambda: found_on(path))
    assert read is None or to_json(read)["cfg"]["n_layers"] == GEOMETRY.layers
    assert digests is None or all(isinstance(d, str) for d in digests)


@many
@given(spoilt(XML))
def test_graphml(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.graphml")
        path.write_bytes(content)
        read = parses_or_says(lambda: load_circuit(path, GEOMETRY))
    assert read is None or len(read.mask) == len(GRAPH.sources)


CFG = st.fixed_dictionaries(
    {}, optional={k: JSON | st.just(v) for k, v in json.loads(MIB)["cfg"].items()} | {"n_kv_heads": JSON}
)
NAMES = st.sampled_from([str(e) for e in GRAPH.edges]) | st.text("am0123h.<>qkv- inputlogs", max_size=14)
EDGE = st.fixed_dictionaries({}, optional={"score": JSON, "in_graph": st.booleans() | JSON}) | JSON


@many
@example({}, {str(GRAPH.edges[0]): {"score": 10**400, "in_graph": True}})
@example({}, {str(GRAPH.edges[0]): {"score": 2**63, "in_graph": False}})
@given(CFG, st.dictionaries(NAMES, EDGE, max_size=4) | JSON)
def test_values(cfg: Any, edges: Any) -> None:
    whole = json.loads(MIB)["cfg"]
    for given_cfg in (cfg, whole):
        parses_or_says(lambda given_cfg=given_cfg: from_json({"cfg": given_cfg, "edges": edges}, GEOMETRY))


@many
@given(st.text("am0123h.<>qkv- inputlogs٣²", max_size=14) | st.text(max_size=10))
def test_names_of_nodes_slots_and_edges(name: str) -> None:
    for kind in (Node, Slot, Edge):
        read = parses_or_says(lambda kind=kind: kind.parse(name))
        assert read is None or kind.parse(str(read)) == read
    parses_or_says(lambda: GRAPH.check(name))
