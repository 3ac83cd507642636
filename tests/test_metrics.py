"""Metrics: hand-computed values, view against whole run, padding, several tokens, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.hooks.prompts import Prompts
from interp.metrics import METRICS, LogitsView, Metric, get_metric, register_metric
from interp.registry import Registry, UserError
from interp.tasks.values import Answers, Task

OURS = [
    "accuracy", "choice_accuracy", "cross_entropy", "interchange_accuracy", "kl", "logit", "logit_diff",
    "logprob", "prob_diff", "rank",
]  # fmt: skip


def one(right: list[list[int]], wrong: list[list[int]], tokens: list[list[int]] | None = None, **more) -> Task:
    """A task whose answers are single tokens."""
    prompts = Prompts.of(tokens or [[1, 2, 3]] * len(right), pad_side=more.pop("pad_side", "right"))
    answers = [Answers.of([[[t] for t in row] for row in side]) for side in (right, wrong)]
    return Task.of("t", prompts, prompts, *answers, **more)


def random_logits(task: Task, vocab: int = 11, seed: int = 0, side: str = "clean") -> torch.Tensor:
    shape = task.prompts(side).tokens.shape  # type: ignore[arg-type]
    return torch.randn(*shape, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def at_answer(rows: list[list[float]], pos: int = 3) -> torch.Tensor:
    """Logits that are 7 in the first columns and `rows` in the last."""
    last = torch.tensor(rows)
    return torch.cat([torch.full((len(rows), pos - 1, last.shape[1]), 7.0), last[:, None]], 1)


def test_the_registry_holds_ours_and_helps() -> None:
    assert set(OURS) <= set(METRICS.names())
    with pytest.raises(UserError, match="did you mean logit_diff"):
        get_metric("logit_dif")
    assert isinstance(METRICS, Registry)


def test_declarations() -> None:
    declared = {m: (get_metric(m).better, get_metric(m).loss_like, get_metric(m).reads) for m in OURS}
    assert declared["logit_diff"] == ("higher", False, "answers")
    assert declared["kl"] == ("lower", True, "vocab")
    assert declared["cross_entropy"] == ("lower", True, "all")
    assert declared["rank"] == ("lower", True, "vocab")
    assert all(get_metric(m).unit and get_metric(m).summary for m in OURS)
    assert not get_metric("accuracy").differentiable


def test_logit_diff_means_over_several_right_and_wrong() -> None:
    task = one([[0], [1, 2]], [[1, 3], [0]])
    logits = at_answer([[5.0, 1.0, 0.0, 2.0], [4.0, 1.0, 3.0, 9.0]])
    # 5 − (1+2)/2, (1+3)/2 − 4
    assert get_metric("logit_diff")(logits, task).tolist() == [3.5, -2.0]
    assert get_metric("logit")(logits, task).tolist() == [5.0, 2.0]


def test_prob_diff_and_logprob_by_hand() -> None:
    task = one([[0, 1]], [[2]])
    logits = at_answer([[math.log(1.0), math.log(2.0), math.log(4.0), math.log(3.0)]])
    assert get_metric("prob_diff")(logits, task).item() == pytest.approx(0.3 - 0.4, abs=1e-6)
    assert get_metric("logprob")(logits, task).item() == pytest.approx(math.log(0.3), abs=1e-6)


def test_kl_is_summed_over_the_vocabulary_in_nats_reference_first() -> None:
    task = one([[0]], [[1]])
    p, q = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    run, ref = (at_answer([[math.log(x) for x in d]]) for d in (q, p))
    # Σ p ln(p/q) = ½ ln 2 + ¼ ln ½ = ¼ ln 2; the reverse differs on other numbers
    assert get_metric("kl")(run, task, reference=ref).item() == pytest.approx(0.25 * math.log(2), abs=1e-6)
    q2 = [0.1, 0.1, 0.8]
    run2 = at_answer([[math.log(x) for x in q2]])
    want = sum(a * math.log(a / b) for a, b in zip(p, q2, strict=True))
    assert get_metric("kl")(run2, task, reference=ref).item() == pytest.approx(want, abs=1e-6)
    assert get_metric("kl")(ref, task, reference=ref).item() == 0.0
    with pytest.raises(UserError, match="reference"):
        get_metric("kl")(run, task)


def test_kl_with_a_zero_probability_in_the_reference() -> None:
    task = one([[0]], [[1]])
    ref = at_answer([[0.0, 0.0, -math.inf]])
    run = at_answer([[0.0, 0.0, 0.0]]).requires_grad_()
    value = get_metric("kl")(run, task, reference=ref)
    assert value.item() == pytest.approx(math.log(1.5), abs=1e-6)
    value.sum().backward()
    assert torch.isfinite(run.grad).all()  # type: ignore[arg-type]


def test_accuracy_and_rank() -> None:
    task = one([[0], [2, 3], [1], [0]], [[1], [0], [0], [1]])
    logits = at_answer([[5.0, 1, 2, 3], [1, 2, 4, 4], [3, 2, 9, 2.5], [1, 1, 0, 0]])
    assert get_metric("accuracy")(logits, task).tolist() == [1, 1, 0, 0]
    # the fourth prompt's right token ties with another: rank 1, not 0
    assert get_metric("rank")(logits, task).tolist() == [0, 0, 3, 1]


def test_rank_does_not_strike_out_token_0_where_answers_are_padded() -> None:
    task = one([[2], [1, 3]], [[1], [2]])
    logits = at_answer([[9.0, 0, 1, 0], [9.0, 0, 1, 2]])
    assert get_metric("rank")(logits, task).tolist() == [1, 1]
    assert get_metric("accuracy")(logits, task).tolist() == [0, 0]


def test_choice_and_interchange_accuracy() -> None:
    task = one([[0], [0], [0]], [[1, 2], [1], [1]], counterfactual=True)
    logits = at_answer([[5.0, 1, 2, 9], [1, 4, 0, 9], [2, 2, 9, 9]])
    assert get_metric("choice_accuracy")(logits, task).tolist() == [1, 0, 0]
    inter = get_metric("interchange_accuracy")
    assert inter(logits, task, "corrupt").tolist() == [1, 0, 0]  # donor: the clean prompt
    assert inter(logits, task, "clean").tolist() == [0, 1, 0]  # donor: the corrupt prompt
    plain = one([[0]], [[1]])
    with pytest.raises(UserError, match="right answer of its own"):
        inter(logits[:1], plain, "clean")


@pytest.mark.parametrize("side", ["clean", "corrupt"])
@pytest.mark.parametrize(
    "answers", [([[0], [1], [2]], [[3], [4], [5]]), ([[0, 1], [2], [3, 4, 5]], [[6], [7, 8], [9]])]
)
@pytest.mark.parametrize("name", [m for m in METRICS.names() if METRICS[m].many])
def test_several_runs_at_once_give_the_bits_of_each(name: str, answers: tuple, side: str) -> None:
    task, metric = one(*answers, counterfactual=True), get_metric(name)
    runs = [metric.view(random_logits(task, seed=i), task, side) for i in range(5)]
    parts = [torch.stack([getattr(view, field) for view in runs]) for field in ("right", "wrong")]
    together = metric.from_view(LogitsView(*parts, side=side), task)
    assert torch.equal(together, torch.stack([metric.from_view(view, task) for view in runs]))
    assert not torch.equal(together[0], together[1])


def test_metrics_of_single_answers_take_several_runs_at_once() -> None:
    assert {m for m in OURS if get_metric(m).many} == {m for m in OURS if get_metric(m).reads == "answers"}


def test_cross_entropy_is_the_nll_over_real_transitions() -> None:
    task = one([[0], [0]], [[1], [1]], [[1, 2, 3, 4], [3, 1]])
    logits = random_logits(task, vocab=6)
    logp = logits.log_softmax(-1)
    want = [
        -(logp[0, 0, 2] + logp[0, 1, 3] + logp[0, 2, 4]) / 3,
        -logp[1, 0, 1],
    ]
    assert torch.allclose(get_metric("cross_entropy")(logits, task), torch.stack(want), atol=1e-6)


@pytest.mark.parametrize("pad_side", ["left", "right"])
@pytest.mark.parametrize("pad_id", [0, 3, 5])
def test_cross_entropy_ignores_padding_whatever_it_holds(pad_side: str, pad_id: int) -> None:
    rows = [[1, 2, 3, 4, 5], [3, 1, 2]]
    prompts = Prompts.of(rows, pad_side=pad_side, pad_id=pad_id)
    task = Task.of("t", prompts, prompts, Answers.of([[[1]]] * 2), Answers.of([[[2]]] * 2))
    whole = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))
    logits = torch.full((2, 5, 6), math.nan)
    for i, row in enumerate(rows):
        logits[i, prompts.mask[i]] = whole[i, : len(row)]
    logits.requires_grad_()
    value = get_metric("cross_entropy")(logits, task)
    alone = []
    for i, row in enumerate(rows):
        logp = whole[i].log_softmax(-1)
        alone.append(-sum(logp[t, row[t + 1]] for t in range(len(row) - 1)) / (len(row) - 1))
    assert torch.allclose(value, torch.stack(alone), atol=1e-6)  # type: ignore[arg-type]
    value.sum().backward()
    assert torch.isfinite(logits.grad).all()  # type: ignore[arg-type]
    assert (logits.grad[~prompts.mask] == 0).all()  # type: ignore[index]


def test_cross_entropy_of_one_token_raises() -> None:
    task = one([[0]], [[1]], [[4]])
    with pytest.raises(UserError, match="at least 2 tokens"):
        get_metric("cross_entropy")(torch.zeros(1, 1, 6), task)


def several() -> Task:
    """Two prompts, answers of 1 to 3 tokens, unequal counts."""
    prompts = Prompts.of([[1, 2, 3], [4, 5]], labels={"S": torch.tensor([1, 0])})
    right = Answers.of([[[6, 7]], [[6], [2, 3, 4]]])
    wrong = Answers.of([[[8], [9, 1]], [[0, 1]]])
    return Task.of("t", prompts, prompts, right, wrong)


def hand_scores(task: Task, logits: torch.Tensor) -> tuple[list[list[float]], list[list[float]]]:
    """Summed log-probabilities, one loop per answer, no code of ours."""
    out: tuple[list[list[float]], list[list[float]]] = ([], [])
    row = 0
    for right, wrong in zip(task.right.lists(), task.wrong.lists(), strict=True):
        for side, answers in ((0, right), (1, wrong)):
            scores = []
            for answer in answers:
                start = int(task.clean.starts[row] + task.clean.answer[row])
                logp = logits[row].double().log_softmax(-1)
                scores.append(sum(logp[start + j, t].item() for j, t in enumerate(answer)))
                row += 1
            out[side].append(scores)
    assert row == len(logits)
    return out


def test_answers_of_several_tokens_score_their_summed_log_probability() -> None:
    task = several()
    logits = random_logits(task)
    right, wrong = hand_scores(task, logits)
    assert get_metric("logit_diff").reads_for(task) == "vocab"
    assert get_metric("logit_diff").unit_for(task) == "nats"
    diff = [sum(r) / len(r) - sum(w) / len(w) for r, w in zip(right, wrong, strict=True)]
    assert get_metric("logit_diff")(logits, task).tolist() == pytest.approx(diff, abs=1e-4)
    prob = [sum(map(math.exp, r)) - sum(map(math.exp, w)) for r, w in zip(right, wrong, strict=True)]
    assert get_metric("prob_diff")(logits, task).tolist() == pytest.approx(prob, abs=1e-6)
    best = [float(max(r) > max(w)) for r, w in zip(right, wrong, strict=True)]
    assert get_metric("choice_accuracy")(logits, task).tolist() == best


def test_accuracy_of_several_tokens_is_greedy_decoding() -> None:
    task = several()
    logits = torch.zeros(*task.clean.tokens.shape, 11)
    # prompt 0, its only right answer [6, 7]: row 0, answer position 2
    logits[0, 2, 6] = logits[0, 3, 7] = 5.0
    # prompt 1: [6] at row 3 loses to 9; [2, 3, 4] at row 4 has its first two steps only
    logits[3, 1, 9] = 5.0
    logits[4, 1, 2] = logits[4, 2, 3] = 5.0
    assert get_metric("accuracy")(logits, task).tolist() == [1, 0]
    logits[4, 3, 4] = 5.0
    assert get_metric("accuracy")(logits, task).tolist() == [1, 1]


def test_cross_entropy_and_kl_leave_appended_tokens_out() -> None:
    task = several()
    logits, other = random_logits(task), random_logits(task, seed=1)
    rows = task.first_rows.tolist()
    logp = logits.log_softmax(-1)
    want = [
        -(logp[rows[0], 0, 2] + logp[rows[0], 1, 3]).item() / 2,
        -logp[rows[1], 0, 5].item(),
    ]
    assert get_metric("cross_entropy")(logits, task).tolist() == pytest.approx(want, abs=1e-5)
    p, q = (x[rows, [2, 1]].softmax(-1) for x in (other, logits))
    kl = (p * (p / q).log()).sum(-1)
    assert torch.allclose(get_metric("kl")(logits, task, reference=other), kl, atol=1e-5)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("build", ["one", "left", "several"])
def test_the_view_path_equals_the_whole_run_exactly(name: str, build: str) -> None:
    if build == "several":
        task = several()
    else:
        side = "left" if build == "left" else "right"
        task = one([[0], [1, 2], [3]], [[4], [5], [6, 7]], [[1, 2, 3, 4], [5, 6], [7, 8, 9]], pad_side=side)
    logits, other, metric = random_logits(task), random_logits(task, seed=1), get_metric(name)
    if name == "interchange_accuracy":
        task = (
            Task.of("t", task.clean, task.clean, task.right, task.wrong, counterfactual=True) if task.single else task
        )
    for where in ("clean", "corrupt"):
        if name == "interchange_accuracy" and where == "clean" and not task.counterfactual:
            continue
        whole = metric(logits, task, where, reference=other)
        view, ref = metric.view(logits, task, where), metric.view(other, task)
        held = [k for k in ("right", "wrong", "vocab", "full") if getattr(view, k) is not None]
        expected = {"answers": ["right", "wrong"], "vocab": ["vocab"], "all": ["full"]}
        assert held == expected[metric.reads_for(task)]
        assert torch.equal(whole, metric.from_view(view, task, ref))
        assert whole.shape == (task.n,)


@pytest.mark.parametrize("name", OURS)
def test_a_prompt_s_number_does_not_depend_on_its_batch(name: str) -> None:
    task = one([[0], [1, 2], [3]], [[4], [5], [6, 7]], [[1, 2, 3, 4], [5, 6], [7, 8, 9]], counterfactual=True)
    logits, other, metric = random_logits(task), random_logits(task, seed=1), get_metric(name)
    together = metric(logits, task, reference=other)
    for i in range(3):
        alone = metric(logits[i : i + 1], task.rows([i]), reference=other[i : i + 1])
        assert torch.allclose(alone, together[i : i + 1], atol=1e-6)


@pytest.mark.parametrize(
    "name", [m for m in OURS if m not in ("accuracy", "rank", "choice_accuracy", "interchange_accuracy")]
)
@pytest.mark.parametrize("build", [one, several])
def test_gradients_equal_finite_differences(name: str, build) -> None:
    task = several() if build is several else one([[0, 1], [2]], [[3], [4, 5]])
    metric, logits = get_metric(name), random_logits(task).double().requires_grad_()
    other = random_logits(task, seed=1).double()
    assert metric.differentiable
    assert torch.autograd.gradcheck(lambda x: metric(x, task, reference=other), (logits,))


def test_half_precision_is_read_as_float32() -> None:
    task = one([[0]], [[1]])
    value = get_metric("logprob")(at_answer([[1.0, 2.0, 3.0]]).bfloat16(), task)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(1 - math.log(math.e + math.e**2 + math.e**3), abs=1e-6)


def test_sides_may_pad_differently() -> None:
    clean, corrupt = Prompts.of([[1, 2, 3], [4, 5, 6]]), Prompts.of([[1, 2], [4, 5, 6]])
    task = Task.of("t", clean, corrupt, Answers.of([[[0]]] * 2), Answers.of([[[1]]] * 2))
    logits = torch.zeros(2, 3, 4)
    logits[0, 1, 0], logits[0, 2, 0] = 2.0, 9.0
    assert get_metric("logit_diff")(logits, task, "corrupt").tolist() == [2.0, 0.0]
    assert get_metric("logit_diff")(logits, task, "clean").tolist() == [9.0, 0.0]


def test_no_wrong_answers() -> None:
    prompts = Prompts.of([[1, 2]])
    task = Task.of("t", prompts, prompts, Answers.of([[[1]]]), Answers.of([[]]))
    assert get_metric("accuracy")(random_logits(task), task).shape == (1,)
    with pytest.raises(UserError, match="no wrong answer"):
        get_metric("logit_diff")(random_logits(task), task)


def test_logits_of_another_shape_raise() -> None:
    task = one([[0]], [[1]])
    with pytest.raises(UserError, match="are not of the clean prompts"):
        get_metric("logit_diff")(torch.zeros(1, 4, 9), task)


def test_registering_a_metric_and_a_taken_name() -> None:
    @register_metric(unit="logits", better="higher", reads="vocab", name="largest_for_a_test")
    def largest(view, task, reference=None):
        """The largest logit."""
        return view.vocab[:, 0].amax(-1)

    try:
        assert isinstance(get_metric("largest_for_a_test"), Metric)
        assert largest(at_answer([[1.0, 4.0]]), one([[0]], [[1]])).tolist() == [4.0]
        assert largest.summary == "The largest logit."
        with pytest.raises(UserError, match="already registered"):
            register_metric(unit="logits", better="higher", reads="vocab", name="kl")(lambda v, t, r: v.vocab)
    finally:
        METRICS._rows.pop("largest_for_a_test")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), shift=st.floats(-50, 50))
def test_adding_a_constant_to_all_logits_changes_nothing(seed: int, shift: float) -> None:
    task = one([[0, 1], [2]], [[3], [4, 5]])
    logits, other = random_logits(task, seed=seed), random_logits(task, seed=seed + 1)
    for name in ("logit_diff", "prob_diff", "kl", "rank", "accuracy", "cross_entropy", "logprob"):
        metric = get_metric(name)
        before, after = (metric(x, task, reference=other) for x in (logits, logits + shift))
        assert torch.allclose(before, after, atol=1e-3), name


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_bounds(seed: int) -> None:
    task = one([[0, 1], [2]], [[3], [4, 5]])
    logits, other = random_logits(task, seed=seed), random_logits(task, seed=seed + 1)
    assert (get_metric("kl")(logits, task, reference=other) >= -1e-6).all()
    assert (get_metric("prob_diff")(logits, task).abs() <= 1 + 1e-6).all()
    assert (get_metric("logprob")(logits, task) <= 1e-6).all()
    top = get_metric("rank")(logits, task) == 0
    assert torch.equal(top.float(), get_metric("accuracy")(logits, task))
