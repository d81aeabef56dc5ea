"""What the rollout says of its tokens and what the trainer says of them, from step 0 on, and how answers are drawn."""

from pathlib import Path

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from safetensors.torch import load_file
from support import edited_pipeline, load_grpo, metrics_lines, run_grpo
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from dagrl import Metrics, Objects, Pipeline, ResourcePool, Sum, WorkerGroup, adamw, node, policy, vllm
from dagrl.compiler import compile_pipelines
from dagrl.errors import CompileError
from dagrl.executor.layout import SourceRows
from dagrl.executor.local import LocalExecutor
from dagrl.graph.specs import ModelSpec
from dagrl.nodes import generate, prompts, verify
from dagrl.workers.deployment import Planned
from dagrl.workers.policy import PolicyWorker
from dagrl.zoo import model_folder

EOS = 2
ROLLOUTS = ("hf", "vllm")


@pytest.fixture(params=ROLLOUTS)
def engine(request: pytest.FixtureRequest) -> str:
    """The engine that generates; vLLM where it is installed."""
    if request.param == "vllm":
        pytest.importorskip("vllm")
    return request.param


def policy_by(engine: str, model: str = "zoo:tiny") -> ModelSpec:
    """A model that generates in fp32 by that engine."""
    return policy(model, precision="fp32", rollout=vllm(kv_cache_gib=0.1) if engine == "vllm" else "hf")


def file_by(folder: Path, engine: str, *edits: tuple[str, str]) -> Path:
    """The shipped pipeline, whose actor generates by that engine."""
    own = "vllm(kv_cache_gib=0.1)" if engine == "vllm" else repr(engine)
    imported = ("adamw, policy", "adamw, policy, vllm")
    return edited_pipeline(folder, imported, ("rollout=cfg.rollout", f"rollout={own}"), *edits)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_rollouts_logprobs_are_the_trainers(temperature: float, tmp_path: Path) -> None:
    """Over three steps, so that the weights have moved twice."""
    run_grpo(tmp_path / "run", steps=3, batch_size=16, temperature=temperature, precision="fp32", lr=1e-2)
    lines = metrics_lines(tmp_path / "run")
    assert all(0 <= line["rollout/logprob_gap_max"] < 1e-3 for line in lines)
    assert all(line["actor/grad_norm"] > 0 for line in lines)


REFUSED = {
    "top_p=0.9": "`generate` has top_p=0.9: its rows come from another distribution",
    "top_k=20": "`generate` has top_k=20: its rows come from another distribution",
    "min_p=0.1": "`generate` has no option `min_p`",
    "repetition_penalty=1.2": "`generate` has no option `repetition_penalty`",
}


@pytest.mark.parametrize("option", REFUSED)
def test_sampling_that_ratios_would_not_know_of_is_refused(option: str, engine: str, tmp_path: Path) -> None:
    file = file_by(tmp_path, engine, ("temperature=cfg.temperature", f"temperature=cfg.temperature, {option}"))
    with pytest.raises(CompileError, match=REFUSED[option]):
        compile_pipelines(load_grpo(file).pipelines)


def bf16_model(folder: Path) -> str:
    """The packaged model as a folder of bf16 weights that no fp32 arithmetic has touched."""
    model = AutoModelForCausalLM.from_pretrained(model_folder("tiny"), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("tiny")).save_pretrained(folder)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    return str(folder)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_model_saved_in_bf16_has_fp32_masters_and_no_distance_to_its_reference(
    precision: str, engine: str, tmp_path: Path
) -> None:
    model = bf16_model(tmp_path / "model")
    group = WorkerGroup("actor", policy(model, optimizer=adamw(lr=1e-3)), pool=ResourcePool("main", [0]))
    worker = PolicyWorker(group, total_steps=1, rollout=False)
    assert {weight.dtype for weight in worker.model.parameters()} == {torch.float32}
    file = file_by(tmp_path, engine)
    run_grpo(tmp_path / "run", steps=1, file=file, model=model, precision=precision, kl=0.1)
    (line,) = metrics_lines(tmp_path / "run")
    assert line["actor/ref_kl"] == 0
    assert line["actor/grad_norm"] > 0
    saved = {tensor.dtype for tensor in load_file(tmp_path / "run/model/model.safetensors").values()}
    assert saved == {torch.bfloat16 if precision == "bf16" else torch.float32}


@node()
def watch(response_text: Objects[str], group_ids: Int64[Tensor, " B"], answers: Objects[str]) -> Metrics:
    """Keeps what it has seen."""
    rows = sorted(zip(group_ids.tolist(), response_text, answers, strict=True))
    SEEN.append(rows)
    return Metrics({"rows": Sum(float(len(rows)))})


@node()
def watch_ends(
    rewards: Float32[Tensor, " B"], response_text: Objects[str], response_mask: Bool[Tensor, "B T"]
) -> Metrics:
    """Keeps what a reward is given of a response, and what it says of it."""
    SEEN.append(list(zip(response_text, response_mask.sum(1).tolist(), rewards.tolist(), strict=True)))
    return Metrics()


@node()
def watch_texts(
    responses: Int64[Tensor, "B T"], response_mask: Bool[Tensor, "B T"], response_text: Objects[str]
) -> Metrics:
    """Keeps the tokens of each response, and its text."""
    ids = [row[mask].tolist() for row, mask in zip(responses, response_mask, strict=True)]
    SEEN.append(list(zip(ids, response_text, strict=True)))
    return Metrics()


SEEN: list[list[tuple]] = []


def drawn(
    engine: str, temperature: float, *, seed: int, step: int = 1, n: int = 4, num_prompts: int = 1
) -> list[tuple]:
    """The group, answer and reference answer of each row of a step; every step reads the same prompts."""
    actor = WorkerGroup("actor", policy_by(engine), pool=ResourcePool("main", [0]))
    with Pipeline("p") as pipeline:
        batch = prompts(data="zoo:larger", batch_size=num_prompts, n=n)
        watch(batch, generate(actor, batch, max_new_tokens=8, temperature=temperature))
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    SEEN.clear()
    positions = torch.arange(num_prompts)
    source = SourceRows(positions, positions + (step - 1) * num_prompts)
    LocalExecutor([planned], seed=seed, total_steps=2).run(planned, step, {"prompts": source})
    return SEEN[0]


def test_four_answers_to_one_prompt_differ_and_a_seed_draws_them_again(engine: str) -> None:
    first = drawn(engine, 1.0, seed=0, num_prompts=8)
    groups = [[text for group, text, _ in first if group == number] for number in range(8)]
    assert all(len(texts) == 4 for texts in groups)
    assert any(len(set(texts)) > 1 for texts in groups)
    assert first == drawn(engine, 1.0, seed=0, num_prompts=8)
    texts = [text for _, text, _ in first]
    assert texts != [text for _, text, _ in drawn(engine, 1.0, seed=1, num_prompts=8)]
    assert texts != [text for _, text, _ in drawn(engine, 1.0, seed=0, step=2, num_prompts=8)]


def test_greedy_answers_of_a_group_are_equal(engine: str) -> None:
    rows = drawn(engine, 0.0, seed=0, num_prompts=4)
    assert len(rows) == 16
    for number in range(4):
        assert len({text for group, text, _ in rows if group == number}) == 1


def silent_model(folder: Path) -> str:
    """A model whose every first token is the end of the sequence: all it sees is one vector, which only that says."""
    model = AutoModelForCausalLM.from_pretrained(model_folder("tiny"), dtype=torch.float32)
    model.config.tie_word_embeddings = False
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1.0 if weight.ndim == 1 else 0.0)
        model.model.embed_tokens.weight.fill_(1.0)
        head = torch.zeros_like(model.model.embed_tokens.weight)
        head[EOS] = 1.0
        model.lm_head.weight = torch.nn.Parameter(head)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder("tiny")).save_pretrained(folder)
    return str(folder)


def test_an_empty_response_is_the_empty_text(engine: str, tmp_path: Path) -> None:
    spec = policy_by(engine, silent_model(tmp_path / "m"))
    actor = WorkerGroup("actor", spec, pool=ResourcePool("main", [0]))
    with Pipeline("p") as pipeline:
        batch = prompts(data="zoo:larger", batch_size=3, n=2)
        rollout = generate(actor, batch, max_new_tokens=4)
        watch_ends(verify(batch, rollout), rollout)
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    SEEN.clear()
    executor = LocalExecutor([planned], seed=0, total_steps=1)
    executor.run(planned, 1, {"prompts": SourceRows(torch.arange(3), torch.arange(3))})
    assert SEEN[0] == [("", 1, 0.0)] * 6


def test_the_text_is_what_the_model_wrote_and_no_more(engine: str) -> None:
    actor = WorkerGroup("actor", policy_by(engine), pool=ResourcePool("main", [0]))
    with Pipeline("p") as pipeline:
        watch_texts(generate(actor, prompts(data="zoo:larger", batch_size=4, n=4), max_new_tokens=6, temperature=1.5))
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    SEEN.clear()
    executor = LocalExecutor([planned], seed=0, total_steps=1)
    executor.run(planned, 1, {"prompts": SourceRows(torch.arange(4), torch.arange(4))})
    tokenizer = AutoTokenizer.from_pretrained(model_folder("tiny"))
    assert [text for _, text in SEEN[0]] == [tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in SEEN[0]]
    assert len({len(ids) for ids, _ in SEEN[0]}) > 1


def test_a_step_of_nothing_but_empty_responses_trains(engine: str, tmp_path: Path) -> None:
    file = file_by(tmp_path, engine)
    run_grpo(tmp_path / "run", steps=2, file=file, model=silent_model(tmp_path / "model"), precision="fp32")
    for line in metrics_lines(tmp_path / "run"):
        assert (line["response_length/mean"], line["reward/mean"]) == (1, 0)
        assert line["reward/unscorable"] == 0
