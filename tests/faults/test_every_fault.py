"""Which test holds which of the known faults, and that each runs on every family that the fault concerns.

A fault is a kind of mistake that users of such tools have met, by number. Families run in CI where that is cheap, else
in the long tier.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import HF_KINDS, tiny

TESTS = Path(__file__).resolve().parents[1]
GEOMETRY = {kind: tiny(kind).geometry for kind in HF_KINDS}
ALL = frozenset(HF_KINDS)
GROUPED = frozenset(kind for kind, g in GEOMETRY.items() if g.kv_heads == 2)
SUMMING = frozenset(kind for kind, g in GEOMETRY.items() if not g.stream_norm)
SEQUENTIAL = frozenset(kind for kind in SUMMING if not GEOMETRY[kind].parallel)
PLAIN_SUM = frozenset(kind for kind in SUMMING if not GEOMETRY[kind].post_norm)
BILINEAR = frozenset(kind for kind, g in GEOMETRY.items() if not g.qk_norm) - {"gemma2"}
CAPPED = frozenset({"gemma2"})
ANY: frozenset[str] = frozenset()
"""Faults of files, texts, tables and sweeps, which no family has a part in."""

FAULTS: dict[int, tuple[frozenset[str], tuple[str, ...]]] = {
    1: (GROUPED, ("faults.test_grouped_heads:test_kv_heads_patch_one_by_one_and_together",)),
    2: (BILINEAR, ("weights.test_circuits:test_the_bilinear_form_gives_the_scores",)),
    3: (SUMMING, ("faults.test_residual_sums:test_the_residual_adds_up",
                  "faults.test_residual_sums:test_a_parallel_block_adds_both_at_once")),
    4: (ALL, ("faults.test_padding:test_left_padding_alone_and_in_a_mixed_batch",)),
    5: (ALL, ("faults.test_lengths:test_batched_lengths_give_the_numbers_of_one_by_one",
              "interventions.test_patching:test_batched_lengths_give_the_rows_of_one_by_one",
              "interventions.test_ablation:test_batched_lengths_give_the_rows_of_one_by_one")),
    6: (ALL, ("faults.test_padding:test_right_padding_leaves_the_loss_alone",)),
    7: (ALL, ("faults.test_padding:test_nothing_is_infinite_under_padding",
              "faults.test_padding:test_gradients_do_not_see_padding")),
    8: (ALL, ("faults.test_residual_sums:test_scores_of_any_size_keep_the_future_hidden",)),
    9: (ALL, ("faults.test_residual_sums:test_the_last_residual_gives_the_logits",)),
    10: (ALL, ("faults.test_residual_sums:test_heads_and_bias_make_attention",
               "faults.test_residual_sums:test_a_shift_of_all_values_moves_the_sum_once")),
    11: (CAPPED, ("faults.test_residual_sums:test_the_soft_cap_lies_between_its_two_sites",
                  "attribution.test_direct:test_fault_11_a_soft_cap_comes_after_the_sum")),
    12: (ALL, ("faults.test_edits_and_captures:test_one_head_is_one_head",)),
    13: (ALL, ("faults.test_edits_and_captures:test_means_do_not_depend_on_the_batch_size",)),
    14: (ALL, ("faults.test_residual_sums:test_zeroed_heads_leave_the_bias",)),
    15: (SUMMING, ("faults.test_circuit_faults:test_fault_15_the_whole_circuit_is_the_model",
                   "faults.test_circuit_faults:test_fault_15_the_empty_circuit_is_the_corrupt_run")),
    16: (ANY, ("test_graph:test_edge_counts",)),
    17: (PLAIN_SUM, ("interventions.test_edges:test_all_edges_into_a_query_equal_replacing_that_query",)),
    18: (SUMMING, ("faults.test_circuit_faults:test_fault_18_a_prompt_against_itself_is_exactly_zero",)),
    19: (ANY, ("interventions.test_patching:test_pairs_of_unequal_length_raise_by_position_before_any_forward",)),
    20: (ALL, ("faults.test_edits_and_captures:test_an_error_midway_leaves_nothing",)),
    21: (ALL, ("faults.test_edits_and_captures:test_a_users_counting_hook_stays_and_counts_once",)),
    22: (ALL, ("faults.test_edits_and_captures:test_misspelt_and_lacking_sites_are_named",)),
    23: (ALL, ("faults.test_edits_and_captures:test_minus_one_is_the_last",)),
    24: (ALL, ("faults.test_edits_and_captures:test_a_capture_is_what_was_there",)),
    25: (ALL, ("faults.test_edits_and_captures:test_patching_a_run_into_itself_changes_no_bit",)),
    26: (ANY, ("faults.test_text:test_exactly_one_bos_or_none_as_asked",)),
    27: (ANY, ("results.test_rowlog:test_killed_after_five_rows_with_a_torn_line_and_resumed_twice",)),
    28: (ANY, ("test_cells:test_other_settings_make_a_new_cell",)),
    29: (ANY, ("interventions.test_patching:test_normalized_is_null_with_a_reason_where_clean_and_corrupt_coincide",)),
    30: (ANY, ("faults.test_edits_and_captures:test_no_row_is_its_own_donor",)),
    31: (ANY, ("report.test_report:test_hostile_tokens_are_text",)),
    32: (ANY, ("tasks.test_task_table:test_a_file_changed_in_place_is_another_task",)),
    33: (ANY, ("faults.test_text:test_text_needs_a_tokenizer_and_token_ids_do_not",)),
    34: (ANY, ("interventions.test_patching:test_four_of_thirty_two_pairs_are_exactly_four",)),
    35: (SEQUENTIAL, (
        "faults.test_residual_sums:test_a_vector_added_in_the_middle_reaches_the_end_with_the_mlps_change",)),
    36: (SUMMING, ("faults.test_circuit_faults:test_fault_36_scores_are_finite_and_kept_edges_rank_first",)),
}  # fmt: skip


def exists(where: str) -> bool:
    """Whether there is a test of this name."""
    module, _, name = where.partition(":")
    text = (TESTS / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    return f"\ndef {name}(" in text


def found(where: str) -> Any:
    """The test function itself."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(f"tests.{module}"), name)


def kinds_of(test: Any) -> set[str]:
    """The kinds that a test's parameters name."""
    named: set[str] = set()
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names = [n.strip() for n in mark.args[0].split(",")] if isinstance(mark.args[0], str) else [*mark.args[0]]
        if "kind" in names:
            named |= {str(_value(case, names.index("kind"), len(names))) for case in mark.args[1]}
    return named


def _value(case: Any, index: int, of: int) -> Any:
    values = getattr(case, "values", None)
    values = values if isinstance(values, tuple) else case if of > 1 else (case,)
    return values[index]


def test_every_fault_is_here() -> None:
    assert [*FAULTS] == [*range(1, 37)]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_runs_on_every_family_it_concerns(fault: int) -> None:
    concerned, tests = FAULTS[fault]
    if not concerned:
        assert all(exists(where) for where in tests), tests
        return
    seen: set[str] = set()
    for where in tests:
        assert exists(where), f"fault {fault}: no test {where}"
        seen |= kinds_of(found(where)) if concerned - CAPPED else CAPPED
    assert concerned <= seen, f"fault {fault} is not tried on {_listed(concerned - seen)}"


def _listed(kinds: Iterable[str]) -> str:
    return ", ".join(sorted(kinds))
