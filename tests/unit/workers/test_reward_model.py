"""Reward models: their own template, the last token by length, and scores that know no neighbour."""

from pathlib import Path
from typing import Any

import pytest
import torch
from critic_cases import make_model
from ranks import run_on_ranks
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from dagrl import ResourcePool, WorkerGroup, reward_model
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.errors import ConfigError, EngineError
from dagrl.nodes import reward_model_score
from dagrl.workers.reward_model import RewardModelWorker

FAMILIES = ("llama", "gpt2")
MESSAGES = [[{"role": "user", "content": text}] for text in ("12 34", "345 346", "1 2", "12 34", "9 8", "700 701")]
RESPONSES = ["34", "346", "", "12", "987654321", "701"]
#: It tells roles apart, ends a conversation, and would open another turn if asked to.
TEMPLATE = (
    "{% for message in messages %}{{ '1' if message.role == 'user' else '2' }}{{ message.content }}{% endfor %}"
    "{{ eos_token }}{% if add_generation_prompt %}2{% endif %}"
)


def scorer(model: str, parallel: DataParallel = SINGLE, **options: Any) -> RewardModelWorker:
    spec = reward_model(model, **{"precision": "fp32", **options})
    return RewardModelWorker(WorkerGroup("scorer", spec, pool=ResourcePool("main")), parallel=parallel)


def expected_scores(folder: str, template: str | None = None) -> torch.Tensor:
    """transformers' own forward on each conversation alone, without any padding."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    model.config.pad_token_id = None  # one row: the last token counts, whatever it is
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = []
    for prompt, response in zip(MESSAGES, RESPONSES, strict=True):
        turns = [*prompt, {"role": "assistant", "content": response}]
        ids = tokenizer.apply_chat_template(turns, chat_template=template, tokenize=True, return_dict=False)
        scores.append(model(torch.tensor([ids])).logits[0, 0])
    return torch.stack(scores).detach()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pad", [0, 2, None])
def test_scores_are_those_of_transformers_one_by_one(tmp_path: Path, family: str, pad: int | None) -> None:
    """Also where the pad token is the end-of-sequence token, which ends each conversation, or there is none."""
    folder = make_model(tmp_path / "model", family, "sequence", pad_token_id=pad)
    expected = expected_scores(folder, TEMPLATE)
    for options in ({}, {"micro_batch_tokens": 1}, {"micro_batch_tokens": 40}):
        worker = scorer(folder, chat_template=TEMPLATE, **options)
        found = worker.score(MESSAGES, RESPONSES)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert len({round(float(score), 4) for score in expected}) == len(RESPONSES)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_models_own_template_counts(tmp_path: Path, family: str) -> None:
    folder = make_model(tmp_path / "model", family, "sequence")
    torch.testing.assert_close(scorer(folder).score(MESSAGES, RESPONSES), expected_scores(folder), rtol=1e-5, atol=1e-5)


def test_a_row_depends_on_no_other(tmp_path: Path) -> None:
    worker = scorer(make_model(tmp_path / "model", "gpt2", "sequence"))
    whole = worker.score(MESSAGES, RESPONSES)
    backwards = worker.score(MESSAGES[::-1], RESPONSES[::-1]).flip(0)
    torch.testing.assert_close(backwards, whole, rtol=1e-5, atol=1e-6)
    for size in (1, 2, 4):
        torch.testing.assert_close(
            worker.score(MESSAGES, RESPONSES, micro_batch_size=size), whole, rtol=1e-5, atol=1e-6
        )
    assert worker.score([], []).shape == (0,)


def test_the_node_is_the_worker(tmp_path: Path) -> None:
    worker = scorer(make_model(tmp_path / "model", "llama", "sequence"))
    assert torch.equal(reward_model_score(worker, MESSAGES, RESPONSES), worker.score(MESSAGES, RESPONSES))


def test_bf16_is_close(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama", "sequence")
    gap = scorer(folder, precision="bf16").score(MESSAGES, RESPONSES) - scorer(folder).score(MESSAGES, RESPONSES)
    assert 0 < float(gap.abs().max()) < 0.1


def test_it_is_frozen(tmp_path: Path) -> None:
    worker = scorer(make_model(tmp_path / "model", "llama", "sequence"))
    assert worker.state() is None
    assert worker.optimizer_bytes == 0
    assert worker.weight_bytes > 0
    assert not any(parameter.requires_grad for parameter in worker.model.parameters())
    worker.load_state([])


def test_no_conversation_is_cut(tmp_path: Path) -> None:
    worker = scorer(make_model(tmp_path / "model", "llama", "sequence"))
    with pytest.raises(ConfigError) as refused:
        worker.score([*MESSAGES, MESSAGES[0]], [*RESPONSES, "1" * 70])
    said = str(refused.value)
    assert "1 conversations have more tokens than the 64 that reward model" in said
    assert "lower `max_new_tokens`" in said


def without(folder: str, **fields: Any) -> str:
    """The folder, its tokenizer without some of what it has."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, value in fields.items():
        setattr(tokenizer, name, value)
    for file in Path(folder).glob("*.jinja"):
        file.unlink()
    tokenizer.save_pretrained(folder)
    return folder


def test_what_cannot_score_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no head that gives a score"):
        scorer("zoo:tiny")
    with pytest.raises(ConfigError, match="gives 2 numbers, not one"):
        scorer(make_model(tmp_path / "two", head="sequence", labels=2))
    bare = without(make_model(tmp_path / "bare", head="sequence"), chat_template=None)
    with pytest.raises(ConfigError, match="has no chat template"):
        scorer(bare)
    assert scorer(bare, chat_template=TEMPLATE).score(MESSAGES, RESPONSES).shape == (6,)
    unpadded = make_model(tmp_path / "unpadded", head="sequence", eos_token_id=None)
    unpadded = without(unpadded, pad_token=None, eos_token=None)
    with pytest.raises(ConfigError, match="no token of the model's vocabulary can fill padding"):
        scorer(unpadded, chat_template="{% for message in messages %}{{ message.content }}{% endfor %}")


def test_what_the_template_refuses_is_said(tmp_path: Path) -> None:
    worker = scorer(
        make_model(tmp_path / "model", head="sequence"),
        chat_template="{% if messages|length > 2 %}{{ raise_exception('two turns at most') }}{% endif %}x",
    )
    twice = [[*MESSAGES[0], *MESSAGES[1]]]
    with pytest.raises(ConfigError, match="cannot render the conversations: two turns at most") as refused:
        worker.score(twice, ["1"])
    assert "`reward_model` another `chat_template`" in str(refused.value)


def score_a_share(rank: int, size: int, strategy: str, folder: str) -> list[float]:
    """Rank 1 has one row of six, so that it runs fewer passes than rank 0."""
    worker = scorer(folder, DataParallel(rank, size, strategy))  # pyright: ignore[reportArgumentType]
    own = slice(0, 5) if rank == 0 else slice(5, 6)
    return worker.score(MESSAGES[own], RESPONSES[own], micro_batch_size=1).tolist()


@pytest.mark.parametrize("strategy", ["replicate", "fsdp"])
def test_two_ranks_score_as_one(tmp_path: Path, strategy: str) -> None:
    folder = make_model(tmp_path / "model", "gpt2", "sequence")
    first, second = run_on_ranks(score_a_share, 2, tmp_path / "ranks", strategy, folder)
    assert [*first, *second] == pytest.approx(scorer(folder).score(MESSAGES, RESPONSES).tolist(), rel=1e-5, abs=1e-6)


def test_an_offloaded_reward_model_starts_away_and_scores_what_it_did(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama", "sequence", pad_token_id=2)
    away = scorer(folder, offload=True)
    with pytest.raises(EngineError, match="the model of worker group `scorer` is offloaded"):
        away.score(MESSAGES, RESPONSES)
    away.phase("onload_model", 1)
    assert torch.equal(away.score(MESSAGES, RESPONSES), scorer(folder).score(MESSAGES, RESPONSES))
