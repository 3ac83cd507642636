"""The write-up of toy-ioi's circuit: prose with the table's own numbers, each claim with its bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from interp.circuits.values import Circuit

STORY = {
    "other-name head": (
        "At the second mention of the subject (S2), a0.h1 attends to the name that is not its own token: to IO rather "
        "than to S1, and copies it to S2. The repeated name is left out by this head itself: with its attention to the "
        "two names exchanged, the model answers with the subject."
    ),
    "movers": (
        "At END all four heads of layer 1 attend to S2, whatever the names are, and move what the other-name head put "
        "there to the logits. They find a place, not a name: the choice between the names was made a layer below."
    ),
    "fetchers": (
        "A second way carries the same answer. a0.h2 and MLP 0 at S2 steer the queries of a1.h2 and a1.h3 there, "
        "which then attend back to IO and put it into S2 once more."
    ),
    "second mover": "a2.h3 attends from END to S2 and moves what a1.h3 and MLP 1 fetched there.",
    "last MLP": "MLP 2 at END reads the movers and sharpens the answer.",
    "not in the circuit": "Heads of layer 0 that the circuit leaves out do not carry the difference.",
}


def page(frame: pd.DataFrame, circuit: Circuit, n: int) -> str:
    """The whole write-up in Markdown."""
    whole = frame[frame["role"] == "circuit"].iloc[0]
    rest = frame[frame["role"] == "complement"].iloc[0]
    others = frame[frame["role"] == "random circuits"].iloc[0]
    edges = len(circuit.graph.edges)
    lines = [
        "# The IOI circuit of toy-ioi", "",
        f"{len(circuit)} of {edges} edges ({len(circuit) / edges:.1%}). Found by ACDC on 100 prompts: loss "
        "|m(N) − m(C)| of the logit difference, τ = 0.3 logits, values outside the circuit from the corrupt prompts, "
        f"in which S2 is a third name; then pruned. Everything below is of {n} other prompts, with 95% intervals. "
        "Shares are of the gap between the corrupt (0) and the clean (1) logit difference.", "",
        f"- Faithfulness: {_share(whole)}.",
        f"- Its complement: {_share(rest)}.",
        f"- {others['components']}, 95th percentile: {_share(others)}.", "",
        "Each part below is named for what it is said to do, with the interventions that test it and the bounds set "
        "on the discovery prompts; \"does\" says whether number and interval lie within them.", "",
    ]  # fmt: skip
    for role, words in STORY.items():
        lines += [f"## {role[0].upper()}{role[1:]}", "", words, ""]
        lines += ["| changed | how | found | must lie | does |", "|---|---|---|---|---|"]
        lines += [_claim(row) for _, row in frame[frame["role"] == role].iterrows()]
        lines.append("")
    lines += [
        "## Minimality",
        "",
        "The largest change that taking a node out makes, over the sets taken out before.",
        "",
    ]
    lines += ["| node | change, logits | when |", "|---|---|---|"]
    lines += [_minimal(row) for _, row in frame[frame["role"] == "minimality"].iterrows()]
    lines += ["", "## Edges", "", ", ".join(f"`{e}`" for e in circuit.edges), ""]
    return "\n".join(lines)


def _share(row: pd.Series) -> str:
    return f"{row['normalized']:.3f} ({row['normalized_low']:.3f} to {row['normalized_high']:.3f})"


def _claim(row: pd.Series) -> str:
    import pandas as pd

    if row["metric"] == "logit_diff":
        found = _share(row)
    else:
        found = f"{row['value']:.3f} ({row['ci_low']:.3f} to {row['ci_high']:.3f})"
    ends = ["" if pd.isna(row[k]) else f"{row[k]:g}" for k in ("expected_low", "expected_high")]
    bounds = f"{ends[0]} to {ends[1]}" if all(ends) else f"at most {ends[1]}" if ends[1] else f"at least {ends[0]}"
    return f"| {row['components']} | {row['intervention']} | {found} | {bounds} | {'yes' if row['fits'] else 'no'} |"


def _minimal(row: pd.Series) -> str:
    change = f"{row['effect']:.2f} ({row['ci_low']:.2f} to {row['ci_high']:.2f})"
    return f"| {row['components']} | {change} | {row['intervention']} |"
