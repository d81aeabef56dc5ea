"""The critic: values stand before their token, know neither padding nor neighbours, learn, and are kept exactly."""

import math
from pathlib import Path

import pytest
import torch
from critic_cases import learn, make_model, plan, read_state, rows_of, start, weights, write_state
from transformers import AutoModelForTokenClassification, BertConfig, BertForTokenClassification, CohereConfig
from transformers.models.cohere import CohereForCausalLM

from dagrl import LossColumns, ResourcePool, WorkerGroup, critic
from dagrl.errors import ConfigError, DagrlError, EngineError, TrainingError
from dagrl.graph.roles import TokenBatch
from dagrl.ops.masks import position_ids
from dagrl.workers.critic import CriticWorker

FAMILIES = ("llama", "gpt2")
KINDS = [(family, head) for family in FAMILIES for head in ("token", "sequence")]


def batch_of(ids: list[list[int]], prompt: int) -> TokenBatch:
    """Rows without padding, every response token trained."""
    tokens = torch.tensor(ids)
    attention = torch.ones(tokens.shape, dtype=torch.bool)
    return TokenBatch(tokens, attention, position_ids(attention), attention[:, prompt:], torch.ones(len(ids)))


def widened(tokens: TokenBatch, left: int, right: int) -> TokenBatch:
    """The same rows with more padding on both sides, of another token than before."""

    def pad(column: torch.Tensor, at_left: int, value: float) -> torch.Tensor:
        return torch.nn.functional.pad(column, (at_left, right), value=value)

    attention = pad(tokens.attention_mask, left, False)
    ids = pad(tokens.input_ids, left, 9)
    return TokenBatch(ids, attention, position_ids(attention), pad(tokens.response_mask, 0, False), tokens.temperatures)


@pytest.mark.parametrize(("family", "head"), KINDS)
def test_values_are_those_of_transformers_one_place_to_the_left(tmp_path: Path, family: str, head: str) -> None:
    """The value at place t is read where token t is predicted: at the place before it."""
    worker = start(make_model(tmp_path, family, head), trains=False)
    prompt, row = 3, [4, 9, 5, 6, 7, 8, 11]
    values = worker.compute_values(batch_of([row], prompt))
    base, layer = worker.model.base_model, list(worker.model.children())[-1]
    expected = [layer(base(torch.tensor([row[:end]])).last_hidden_state)[0, -1, 0] for end in range(prompt, len(row))]
    assert values.dtype == torch.float32
    torch.testing.assert_close(values[0], torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert len({round(float(value), 4) for value in values[0]}) == len(row) - prompt


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_knows_the_tokens_before_it_and_no_other(tmp_path: Path, family: str) -> None:
    worker = start(make_model(tmp_path, family, "token"), trains=False)
    row = [4, 9, 5, 6, 7, 8]
    before = worker.compute_values(batch_of([row], 2))[0]
    for place in range(4):
        changed = list(row)
        changed[2 + place] = 20
        after = worker.compute_values(batch_of([changed], 2))[0]
        same = (before - after).abs() < 1e-6
        assert same.tolist() == [other <= place for other in range(4)]


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_neighbours_and_micro_batches_change_no_value(tmp_path: Path, family: str) -> None:
    worker = start(make_model(tmp_path, family, "token"), trains=False, micro_batch_tokens=20)
    tokens, _, _ = rows_of()
    mask = tokens.response_mask
    whole = worker.compute_values(tokens)
    assert not bool(whole[~mask].any())
    assert bool(whole[mask].all())
    for size in (1, 3, 7):
        torch.testing.assert_close(worker.compute_values(tokens, micro_batch_size=size), whole, rtol=1e-5, atol=1e-6)
    wider = worker.compute_values(widened(tokens, 3, 2))
    torch.testing.assert_close(wider[:, : mask.shape[1]], whole, rtol=1e-5, atol=1e-6)
    for row in range(len(mask)):
        alone = worker.compute_values(TokenBatch(*(column[row : row + 1] for column in tokens)))
        torch.testing.assert_close(alone[0], whole[row], rtol=1e-5, atol=1e-6)


def test_no_rows_give_no_values(tmp_path: Path) -> None:
    worker = start(make_model(tmp_path), trains=False)
    tokens, _, _ = rows_of()
    assert worker.compute_values(TokenBatch(*(column[:0] for column in tokens))).shape == (0, 5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_head_says_exactly_nothing_and_then_learns(tmp_path: Path, family: str) -> None:
    worker = start(make_model(tmp_path, family), lr=3e-3)
    tokens, columns, _ = rows_of()
    assert not bool(worker.compute_values(tokens).any())
    first = learn(worker, range(1, 2))["critic/value_loss"].value
    learn(worker, range(2, 60))
    last = learn(worker, range(60, 61))["critic/value_loss"].value
    expected = 0.5 * columns["returns"][tokens.response_mask].square()
    assert first >= float(expected.mean()) - 1e-6  # the clipped loss of values 0 is at least the plain one
    assert last < 0.5 * first
    assert bool(worker.compute_values(tokens)[tokens.response_mask].all())


def test_it_learns_what_tokens_are_worth() -> None:
    """On the packaged model, returns that a response's tokens decide: the explained variance nears 1."""
    worker = start("zoo:tiny", lr=2e-3, max_grad_norm=None)
    draw = torch.Generator().manual_seed(0)
    tokens = batch_of(torch.randint(5, 15, (64, 8), generator=draw).tolist(), 4)
    worth = (tokens.input_ids[:, 3:-1] % 5).float() / 4  # of the last token that a value has seen
    found = []
    for step in range(1, 41):
        columns = {"values": worker.compute_values(tokens), "returns": worth, "response_mask": tokens.response_mask}
        found.append(worker.update(tokens, LossColumns(columns), torch.arange(64), plan(step=step)).numbers())
    assert found[0]["critic/explained_variance"] == pytest.approx(0, abs=1e-6)
    assert found[-1]["critic/explained_variance"] > 0.9
    assert found[-1]["critic/value_loss"] < 0.1 * found[0]["critic/value_loss"]


def test_a_head_that_a_checkpoint_has_is_kept_and_saved(tmp_path: Path) -> None:
    tokens, _, _ = rows_of()
    for number, (family, head) in enumerate([*KINDS, ("llama", "none")]):
        worker = start(make_model(tmp_path / str(number), family, head))
        before = worker.compute_values(tokens)
        learn(worker, range(1, 3))
        trained = worker.compute_values(tokens)
        worker.save(tmp_path / f"{number}-saved")
        again = start(str(tmp_path / f"{number}-saved"))
        assert type(again.model) is type(worker.model)
        assert all(torch.equal(tensor, weights(worker)[name]) for name, tensor in weights(again).items())
        torch.testing.assert_close(again.compute_values(tokens), trained, rtol=1e-5, atol=1e-6)
        assert not torch.equal(before, trained)


def test_what_it_saves_is_a_model_of_transformers_with_its_tokenizer(tmp_path: Path) -> None:
    worker = start(make_model(tmp_path / "model"))
    learn(worker, range(1, 2))
    worker.save(tmp_path / "saved")
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "saved")
    assert model.config.num_labels == 1
    assert torch.equal(model.score.weight, worker.model.score.weight)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "saved").iterdir()
    }


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_micro_batches_change_neither_weights_nor_metrics(tmp_path: Path, mode: str) -> None:
    model = make_model(tmp_path, "gpt2", "token")
    found = []
    for size in (0, 1, 2, 4):
        worker = start(model, lr=1e-3)
        numbers = learn(worker, range(1, 2), micro_batch_size=size, loss_agg_mode=mode).numbers()
        found.append((numbers, weights(worker)))
    (numbers, expected), *others = found
    for other_numbers, other in others:
        assert other_numbers == pytest.approx(numbers, rel=1e-5, abs=1e-6)
        assert all((expected[name] - tensor).abs().max() < 2e-6 for name, tensor in other.items())


def test_metrics_are_the_critics_own(tmp_path: Path) -> None:
    worker = start(make_model(tmp_path, head="token"))
    assert set(learn(worker, range(1, 3), mini_batch_size=3)) == {
        "critic/loss", "critic/lr", "critic/grad_norm", "critic/optimizer_steps", "critic/value_loss",
        "critic/clip_fraction", "critic/explained_variance", "critic/values", "critic/returns",
    } | {"critic/empty_mini_batches"} & set(learn(worker, range(3, 4), mini_batch_size=3))  # fmt: skip


def test_bf16_values_are_close_and_fp32(tmp_path: Path) -> None:
    model = make_model(tmp_path, head="token")
    tokens, _, _ = rows_of()
    exact = start(model).compute_values(tokens)
    rough = start(model, precision="bf16").compute_values(tokens)
    assert rough.dtype == torch.float32
    assert 0 < float((exact - rough).abs().max()) < 0.1


def test_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", "gpt2")
    through, first = start(model), start(model)
    learn(through, range(1, 5))
    learn(first, range(1, 3))
    write_state(first, tmp_path / "state")
    second = start(model)
    second.load_state(read_state(tmp_path / "state"))
    learn(second, range(3, 5))
    assert all(torch.equal(tensor, weights(second)[name]) for name, tensor in weights(through).items())
    assert second.optimizer_bytes == through.optimizer_bytes == 2 * through.weight_bytes + 4 * len(weights(through))


def test_a_frozen_critic_has_no_state_and_does_not_learn(tmp_path: Path) -> None:
    worker = start(make_model(tmp_path), trains=False)
    assert worker.state() is None
    assert worker.optimizer_bytes == 0
    with pytest.raises(DagrlError, match="`critic` has no optimizer"):
        learn(worker, range(1, 2))


def test_dropout_of_the_model_is_not_used(tmp_path: Path) -> None:
    model = make_model(tmp_path, "gpt2", "token", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    first, second = start(model), start(model)
    torch.manual_seed(1)
    learn(first, range(1, 3))
    torch.manual_seed(2)
    learn(second, range(1, 3))
    assert all(torch.equal(tensor, weights(second)[name]) for name, tensor in weights(first).items())


def test_a_return_that_is_not_finite_stops_it_before_it_steps(tmp_path: Path) -> None:
    worker = start(make_model(tmp_path, head="token"))
    before = weights(worker)
    tokens, columns, seeds = rows_of()
    spoiled = columns["returns"].masked_fill(tokens.response_mask, math.nan)
    with pytest.raises(TrainingError, match="the gradient norm is nan"):
        worker.update(tokens, LossColumns({**columns, "returns": spoiled}), seeds, plan())
    assert all(torch.equal(tensor, weights(worker)[name]) for name, tensor in before.items())


def test_what_gives_no_single_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gives 3 numbers, not one"):
        start(make_model(tmp_path / "three", head="token", labels=3))
    small = {
        "vocab_size": 82,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    BertForTokenClassification(BertConfig(**small, num_labels=1)).save_pretrained(tmp_path / "bert")
    with pytest.raises(ConfigError, match="does not read tokens one by one"):
        start(str(tmp_path / "bert"))
    CohereForCausalLM(CohereConfig(**small)).save_pretrained(tmp_path / "cohere")
    with pytest.raises(ConfigError, match="family `cohere`, for which transformers has no model with a scalar head"):
        start(str(tmp_path / "cohere"))


def test_an_offloaded_critic_starts_away_and_values_what_it_did(tmp_path: Path) -> None:
    folder = make_model(tmp_path, "llama", "token")
    spec = critic(folder, precision="fp32", offload=True)
    away = CriticWorker(WorkerGroup("critic", spec, pool=ResourcePool("main")), total_steps=1)
    tokens = batch_of([[4, 9, 5, 6, 7]], 2)
    with pytest.raises(EngineError, match="the model of worker group `critic` is offloaded"):
        away.compute_values(tokens)
    away.phase("onload_model", 1)
    assert torch.equal(away.compute_values(tokens), start(folder, trains=False).compute_values(tokens))
