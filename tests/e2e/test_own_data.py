"""Data of one's own through the shipped pipeline: it trains on every shape, and broken data starts nothing."""

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import GRPO, edited_pipeline, event_lines, metrics_lines

from dagrl import ResourcePool, WorkerGroup, policy
from dagrl.cli.main import _exit_code
from dagrl.cli.pipeline_file import load_pipelines
from dagrl.data.rows import open_rows
from dagrl.trainer.loop import run
from dagrl.workers.policy import PolicyWorker


def pairs(count: int, start: int = 300) -> list[tuple[str, str]]:
    return [(f"{a} {a + 51}", str(a + 51)) for a in range(start, start + count)]


def plain(prompt: str, answer: str, index: int) -> dict[str, Any]:
    return {"prompt": prompt, "answer": answer, "level": index % 3}


def verl(prompt: str, answer: str, index: int) -> dict[str, Any]:
    return {
        "data_source": f"pairs/{index % 2}",
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": "train", "index": index},
    }


def trl(prompt: str, answer: str, index: int) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": prompt}], "solution": answer}


def rows_of(shape: Any, count: int, start: int = 300) -> list[dict[str, Any]]:
    return [shape(prompt, answer, index) for index, (prompt, answer) in enumerate(pairs(count, start))]


def write(path: Path, rows: Sequence[Any]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
        return path
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path, file: Path, *arguments: str
) -> tuple[int, str, str]:
    sets = [part for text in ("batch_size=4", "n=2", *arguments) for part in ("--set", text)]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["dagrl", "run", str(file), "--steps", "2", "--out", "out", *sets])
    code = _exit_code()
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("shape", [plain, verl, trl])
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_the_shipped_pipeline_trains_on_rows_of_every_shape(
    tmp_path: Path, shape: Any, ending: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / f"mine/train{ending}", rows_of(shape, 10))
    write(tmp_path / f"mine/test{ending}", rows_of(shape, 5, start=600))
    code, out, err = command(capsys, monkeypatch, tmp_path, GRPO, "data=mine")
    assert code == 0, err
    assert out.splitlines()[-1].startswith("done:")
    lines = metrics_lines(tmp_path / "out")
    assert [(line["pipeline"], line["step"]) for line in lines] == [("eval", 0), ("grpo", 1), ("grpo", 2), ("eval", 2)]
    sources = {"pairs/0", "pairs/1"} if shape is verl else {"test"}
    assert {key.removeprefix("reward/mean/") for key in lines[0] if key.startswith("reward/mean/")} == sources
    assert lines[0]["reward/mean"] > 0


def trained(folder: Path, data: Path, *edits: tuple[str, str], steps: int = 2, **values: Any) -> list[dict[str, Any]]:
    file = edited_pipeline(folder, *edits, name=f"edited_{len(list(folder.iterdir()))}.py")
    texts = {"data": str(data), "batch_size": "4", "n": "2", **{key: str(value) for key, value in values.items()}}
    run(load_pipelines(str(file), texts).pipelines, out=str(folder / file.stem), steps=steps)
    return metrics_lines(folder / file.stem)


def test_shape_and_format_change_nothing_in_the_numbers(tmp_path: Path) -> None:
    numbers = []
    for shape, ending in ((plain, ".jsonl"), (trl, ".parquet"), (verl, ".jsonl.gz")):
        folder = tmp_path / f"{shape.__name__}"
        (folder / "data").mkdir(parents=True)
        for split, start in (("train", 300), ("test", 600)):
            write(folder / f"data/{split}{ending}", rows_of(shape, 9, start))
        lines = trained(folder, folder / "data")
        numbers.append([{k: v for k, v in line.items() if not k.startswith("reward/mean/")} for line in lines])
    assert numbers[0] == numbers[1] == numbers[2]


def test_a_part_of_one_file_is_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "rows.jsonl", rows_of(plain, 40))
    code, _, err = command(capsys, monkeypatch, tmp_path, GRPO, "data=rows.jsonl", "test_share=0.2")
    assert code == 0, err
    lines = metrics_lines(tmp_path / "out")
    assert [line["pipeline"] for line in lines] == ["eval", "grpo", "grpo", "eval"]
    assert "reward/mean/rows" in lines[0]
    events = event_lines(tmp_path / "out")
    (seen,) = {e["rows"] for e in events if e["event"] == "OpFinished" and e["op"] == "report"}
    assert 1 < seen < 20


def test_a_part_of_one_file_that_is_too_small_for_a_batch_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "rows.jsonl", rows_of(plain, 40))
    sets = ("data=rows.jsonl", "test_share=0.5", "batch_size=39")
    says = ("rows in the split `train`, fewer than batch_size=39",)
    refused(command(capsys, monkeypatch, tmp_path, GRPO, *sets), tmp_path, says)


def test_an_evaluation_of_five_rows_in_batches_of_two_is_the_mean_over_five(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data/train.jsonl", rows_of(plain, 8))
    easy = [{"prompt": f"{a} {a + 400}", "answer": str(a + 400)} for a in (123, 234, 345, 456)]
    write(tmp_path / "data/test.jsonl", [*easy, {"prompt": "123 523", "answer": "never"}])
    lines = trained(tmp_path, tmp_path / "data", ("batch_size=1024", "batch_size=2"), steps=1)
    assert lines[0]["reward/mean"] == lines[0]["reward/mean/test"] == pytest.approx(0.8)


SHORT = (
    ("from dagrl.nodes import (", "from dagrl.nodes.filters import short_prompts\nfrom dagrl.nodes import ("),
    (
        "        rollout = generate(actor, batch, max",
        "        short = short_prompts(actor, batch, max_prompt_tokens=9)\n"
        "        rollout = generate(actor, batch, short, max",
    ),
)


def test_groups_with_a_prompt_that_is_too_long_leave_whole_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = rows_of(plain, 4)
    rows[1]["prompt"] = rows[3]["prompt"] = "3000 4000"
    write(tmp_path / "data/train.jsonl", rows)
    write(tmp_path / "data/test.jsonl", rows_of(plain, 5))
    lines = trained(tmp_path, tmp_path / "data", *SHORT)
    assert [line["short_prompts/dropped"] for line in lines if line["pipeline"] == "grpo"] == [4, 4]
    events = event_lines(next(tmp_path.glob("edited_*/events")).parent)
    rows_run = {e["op"]: e["rows"] for e in events if e["event"] == "OpFinished" and e["pipeline"] == "grpo"}
    assert rows_run["short_prompts"] == 8
    assert rows_run["generate"] == rows_run["update_policy"] == 4
    write(tmp_path / "data/train.jsonl", [rows[1]] * 4)
    lines = trained(tmp_path, tmp_path / "data", *SHORT, steps=1)
    step = next(line for line in lines if line["pipeline"] == "grpo")
    assert (step["short_prompts/dropped"], step["skipped_updates"]) == (8, 1)


GOOD = [json.dumps(row) for row in rows_of(plain, 6)]


def broken(*lines: str) -> bytes:
    return "\n".join([*GOOD, *lines, *GOOD]).encode()


BROKEN: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "cut line": (broken('{"prompt": "3 5", "answer"'), ("line 7: no valid JSON",)),
    "python dict": (broken("{'prompt': '3 5', 'answer': '5'}"), ("line 7: no valid JSON", "one JSON object a line")),
    "list row": (broken('["3 5", "5"]'), ("line 7: the row is a list",)),
    "text row": (broken('"3 5"'), ("line 7: the row is a text",)),
    "NaN": (broken('{"prompt": "3 5", "answer": NaN}'), ("line 7: NaN is no JSON number",)),
    "Infinity": (broken('{"prompt": "3 5", "x": [Infinity]}'), ("line 7: Infinity is no JSON number",)),
    "half a character": (broken(r'{"prompt": "3 \ud800", "answer": "5"}'), ("line 7: it holds half of a character",)),
    "not UTF-8": (broken("@").replace(b"@", b'{"prompt": "3 \xe9"}'), ("line 7: byte 15 of the line is no UTF-8",)),
    "empty": (b"", ("has no rows",)),
    "blank lines": (b"\n\n\r\n", ("has no rows",)),
    "one list": (b"[\n" + b",\n".join(line.encode() for line in GOOD) + b"]", ("holds one JSON list", "jq")),
    "no prompt": (broken('{"question": "3 5", "answer": "5"}'), ("line 7: it has no `prompt`", "`question`")),
    "null prompt": (broken('{"prompt": null, "answer": "5"}'), ("line 7: `prompt` is null",)),
    "empty prompt": (broken('{"prompt": "", "answer": "5"}'), ("line 7: `prompt` is empty",)),
    "prompt of numbers": (broken('{"prompt": [3, 5], "answer": "5"}'), ("line 7: `prompt[0]` is 3, not a message",)),
    "message without role": (broken('{"prompt": [{"content": "3 5"}]}'), ("line 7: `prompt[0]` has no `role`",)),
    "content parts": (
        broken('{"prompt": [{"role": "user", "content": [{"type": "text"}]}]}'),
        ("line 7: `prompt[0].content` is a list, not text",),
    ),
    "no answer": (
        broken('{"prompt": "3 5"}'),
        ("line 7 has no `answer`", "`verify` reads `answers`", "add the answer, or drop the row"),
    ),
    "null answer": (broken('{"prompt": "3 5", "answer": null}'), ("line 7 has no `answer`",)),
    "data_source": (broken('{"prompt": "3 5", "answer": "5", "data_source": 7}'), ("line 7: `data_source` is 7",)),
    "many": (broken(*["{"] * 7), ("line 7:", "line 11:", "has 7 such rows; the first 5 are listed")),
    "gzip cut short": (gzip.compress(b"\n".join(line.encode() for line in GOOD))[:-9], ("damaged gzip file",)),
    "too few": (
        broken()[: len(GOOD[0])],
        ("has 1 row in the split `train`, fewer than batch_size=4", "lower `batch_size`"),
    ),
    "a name twice": (broken('{"prompt": "3 5", "answer": "5", "answer": "3"}'), ("line 7: it has `answer` twice",)),
    "unknown role": (
        broken('{"prompt": [{"role": "human", "content": "3 5"}]}'),
        ("line 7: `prompt[0]` has the role `human`", "`user`"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rows_give_one_message_and_start_nothing(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, says = BROKEN[name]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.jsonl").write_bytes(content)
    write(tmp_path / "mine/test.jsonl", rows_of(plain, 5))
    refused(command(capsys, monkeypatch, tmp_path, GRPO, "data=mine"), tmp_path, says)


def refused(done: tuple[int, str, str], folder: Path, says: tuple[str, ...]) -> None:
    code, out, err = done
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert "grpo.py:" in err
    assert not (folder / "out").exists()
    for text in says:
        assert text in err


def parquet_with(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    return [*rows, row, *rows]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": None, "answer": "5", "level": 0}, ("train.parquet` row 7: `prompt` is null",)),
        ({"prompt": " ", "answer": "5", "level": 0}, ("train.parquet` row 7: `prompt` is empty",)),
        ({"prompt": "3 5", "answer": None, "level": 0}, ("train.parquet` row 7 has no `answer`",)),
    ],
)
def test_broken_parquet_rows(
    tmp_path: Path,
    row: dict[str, Any],
    says: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine/train.parquet", parquet_with(rows_of(plain, 6), row))
    write(tmp_path / "mine/test.jsonl", rows_of(plain, 5))
    refused(command(capsys, monkeypatch, tmp_path, GRPO, "data=mine"), tmp_path, says)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("rows.jsonl", ("`rows.jsonl` is one file and has no split `test`", "`--set test_share=0.1`")),
        ("empty.parquet", ("`empty.parquet` is no readable parquet file",)),
        ("cut.parquet", ("`cut.parquet` is no readable parquet file",)),
        ("none.jsonl", ("`none.jsonl` is not known: there is no such file",)),
        ("none", ("`none` is not known: there is no such file or folder", "zoo:larger")),
        ("rows.csv", ("`rows.csv` is neither a file of rows nor a folder",)),
        ("half", ("no file for the split `test`; it has `train.jsonl`",)),
        ("half/{split}.jsonl", ("`half/test.jsonl` is not known",)),
        ("broken.parquet", ("`broken.parquet` is no readable parquet file",)),
        ("nope://rows.jsonl", ("`nope://rows.jsonl` cannot be opened", "Protocol not known")),
    ],
)
def test_data_that_cannot_be_found_or_opened(
    tmp_path: Path,
    data: str,
    says: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "half").mkdir()
    write(tmp_path / "half/train.jsonl", rows_of(plain, 6))
    write(tmp_path / "rows.jsonl", rows_of(plain, 6))
    (tmp_path / "rows.csv").write_text("prompt,answer\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "empty.parquet").write_bytes(b"")
    whole = write(tmp_path / "whole.parquet", rows_of(plain, 6)).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    refused(command(capsys, monkeypatch, tmp_path, GRPO, f"data={data}"), tmp_path, says)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("batch, max_new_tokens", "batch, max_prompt_tokens=0, max_new_tokens", ("`max_prompt_tokens` is 0",)),
        ("batch, max_new_tokens", 'batch, overlong_prompts="left", max_new_tokens', ("give `max_prompt_tokens`",)),
        ("batch, max_new_tokens", 'batch, overlong_prompts="middle", max_new_tokens', ("overlong_prompts='middle'",)),
        (
            "batch, max_new_tokens",
            "batch, short_prompts(actor, batch, max_prompt_tokens=0), max_new_tokens",
            ("`short_prompts`: `max_prompt_tokens` is 0",),
        ),
        ("cfg.model, optimizer", "cfg.model, stop_tokens='<eos>', optimizer", ("`policy` got `stop_tokens='<eos>'`",)),
        ("cfg.model, optimizer", "cfg.model, chat_template='none.jinja', optimizer", ("`none.jinja` cannot be read",)),
        ("test_share: float = 0.0", "test_share: float = 0.1", ("has splits of its own", "leave `test_share` out")),
    ],
)
def test_options_that_do_not_fit(
    tmp_path: Path,
    old: str,
    new: str,
    says: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = edited_pipeline(tmp_path, SHORT[0], (old, new), name="grpo.py")
    refused(command(capsys, monkeypatch, tmp_path, file), tmp_path, says)


def test_a_prompt_that_is_too_long_while_it_runs_is_named_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine/train.jsonl", [{"prompt": "345 678" * 30, "answer": "678"}] * 4)
    write(tmp_path / "mine/test.jsonl", rows_of(plain, 5))
    file = edited_pipeline(tmp_path, ("batch, max_new_tokens", "batch, max_prompt_tokens=20, max_new_tokens"))
    code, _, err = command(capsys, monkeypatch, tmp_path, file, "data=mine")
    assert code == 2
    assert "8 of 8 rows have a prompt of more than max_prompt_tokens=20 tokens" in err
    assert "212 tokens: '345 678345" in err
    assert "Traceback" not in err


CHANGE = """
from pathlib import Path

from dagrl import node
from dagrl.data.columns import Objects


@node(writes="answers")
def change(answers: Objects[str]) -> Objects[str]:
    file = Path("mine/{split}.jsonl")
    {edit}
    return answers
"""


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ("file.write_text('')", "is another than it was"),
        ("file.write_text(file.read_text()[:-150])", "has changed since it was opened"),
        ("file.write_text(file.read_text().replace('answer', 'nswera'))", "is another than it was"),
        ("file.write_text(file.read_text() * 2)", "bytes and has"),
        ("file.unlink(missing_ok=True)", "it is gone"),
    ],
)
def test_a_file_that_changes_during_the_run_ends_it_with_exit_code_2(
    tmp_path: Path,
    edit: str,
    says: str,
    split: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine/train.jsonl", rows_of(plain, 9))
    write(tmp_path / "mine/test.jsonl", rows_of(plain, 5))
    node = f"change_{split}_{len(edit)}"
    (tmp_path / f"{node}.py").write_text(CHANGE.format(edit=edit, split=split))
    file = edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", f"from {node} import change\nfrom dagrl.nodes import ("),
        (
            "        reward = verify(batch, rollout)",
            '        reward = verify(change(batch), rollout.only("response_text", "truncated"))',
        ),
    )
    code, out, err = command(capsys, monkeypatch, tmp_path, file, "data=mine")
    assert code == 2, err
    assert "step 1/2" in out
    assert f"data file `mine/{split}.jsonl` has changed since it was opened" in err
    assert says in err
    assert "Traceback" not in err


def test_two_runs_in_one_process_read_the_file_as_it_is_at_their_start(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data/test.jsonl", rows_of(plain, 5))
    for count in (9, 12, 6):
        write(tmp_path / "data/train.jsonl", rows_of(plain, count))
        lines = trained(tmp_path, tmp_path / "data")
        assert [line["step"] for line in lines if line["pipeline"] == "grpo"] == [1, 2]


def test_the_chat_template_gets_every_field_of_a_message(tmp_path: Path) -> None:
    template = tmp_path / "names.jinja"
    template.write_text("{{ bos_token }}{% for m in messages %}{{ m.content }}{{ m.name }}{% endfor %}=")
    model = policy("zoo:tiny", chat_template=str(template))
    worker = PolicyWorker(WorkerGroup("actor", model, pool=ResourcePool("main", [0])), total_steps=1, rollout=True)
    said = {"role": "user", "content": "1"}
    rows = [{"prompt": [said]}, {"prompt": [{**said, "name": "2"}]}, {"prompt": [{**said, "name": "3"}]}]
    messages = [row.messages for row in open_rows(str(write(tmp_path / "rows.jsonl", rows)), "train")]
    texts = worker.tokenizer.batch_decode(worker.apply_chat_template(messages), skip_special_tokens=True)
    assert texts == ["1=", "12=", "13="]
