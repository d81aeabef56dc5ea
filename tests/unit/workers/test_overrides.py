"""What `policy(...)` says in place of the model's files: chat template and stop tokens."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from dagrl import ResourcePool, WorkerGroup, policy
from dagrl.errors import ConfigError, PipelineFileError
from dagrl.graph.roles import Sampling
from dagrl.workers.policy import PolicyWorker
from dagrl.zoo import model_folder

TWICE = "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}="
PROMPT = [{"role": "user", "content": "34"}]


def worker(**options) -> PolicyWorker:
    spec = policy("zoo:tiny", precision="fp32", **options)
    return PolicyWorker(WorkerGroup("actor", spec, pool=ResourcePool("main", [0])), total_steps=1, rollout=True)


def rendered(actor: PolicyWorker) -> str:
    return str(actor.tokenizer.decode(actor.apply_chat_template([PROMPT])[0]))


def test_the_template_is_the_tokenizers_unless_one_is_given(tmp_path: Path) -> None:
    (tmp_path / "twice.jinja").write_text(TWICE)
    assert rendered(worker()) == "<bos>34="
    assert rendered(worker(chat_template=TWICE)) == "3434="
    assert rendered(worker(chat_template=str(tmp_path / "twice.jinja"))) == "3434="


def test_a_template_that_does_not_work_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match=r"none\.jinja` cannot be read: No such file") as caught:
        policy("zoo:tiny", chat_template=str(tmp_path / "none.jinja"))
    at = caught.value.problems[0].at
    assert at is not None
    assert at.file == __file__
    with pytest.raises(ConfigError, match="cannot render the prompts"):
        worker(chat_template="{% for m in messages %}")
    with pytest.raises(ConfigError, match="cannot render the prompts: ZeroDivisionError: division by zero"):
        worker(chat_template="{{ 1 / 0 }}")
    with pytest.raises(ConfigError, match="roles must alternate"):
        worker(chat_template="{{ raise_exception('roles must alternate') }}")


def test_messages_that_the_template_refuses_are_the_users_mistake() -> None:
    actor = worker(chat_template="{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}3=")
    assert rendered(actor) == "3="
    with pytest.raises(ConfigError, match="`zoo:tiny` cannot render the prompts: one only"):
        actor.apply_chat_template([[*PROMPT, *PROMPT]])


def greedy(actor: PolicyWorker) -> list[int]:
    prompts = actor.apply_chat_template([[{"role": "user", "content": "347 952"}]])
    samples = actor.generate(prompts, torch.zeros(1, dtype=torch.int64), Sampling(max_new_tokens=8, temperature=0))
    return samples.responses[0, : int(samples.lengths[0])].tolist()


def test_a_response_ends_at_the_tokens_that_were_given() -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_folder("tiny"))
    five, eos = tokenizer.convert_tokens_to_ids("5"), tokenizer.eos_token_id
    whole = greedy(worker())
    assert tokenizer.decode(whole[:-1]) == "952"
    assert whole[-1] == eos
    assert greedy(worker(stop_tokens=["5"])) == whole[:2]
    assert greedy(worker(stop_tokens=[five])) == whole[:2]
    assert greedy(worker(stop_tokens=("2", eos))) == whole[:3]


def test_what_was_given_is_saved_with_the_model(tmp_path: Path) -> None:
    worker(chat_template=TWICE, stop_tokens=["5", 2]).save(tmp_path / "model")
    saved = json.loads((tmp_path / "model/generation_config.json").read_text())
    assert saved["eos_token_id"] == [AutoTokenizer.from_pretrained(model_folder("tiny")).convert_tokens_to_ids("5"), 2]
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template == TWICE


@pytest.mark.parametrize(
    ("tokens", "says"), [(["<|im_end|>"], "'<|im_end|>'"), ([2, 82], "82"), ([-1], "-1"), ([], "an empty list")]
)
def test_tokens_outside_the_vocabulary_are_named(tokens, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        worker(stop_tokens=tokens)
    assert f"`stop_tokens` has {says}, which is none of the 82 tokens of `zoo:tiny`" in str(caught.value)
