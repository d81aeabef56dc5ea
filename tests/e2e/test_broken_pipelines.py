"""Broken pipelines and wrong command lines: one message, the user's line, a fix, exit code 2, and nothing started."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import GRPO, edited_pipeline

from dagrl.cli.main import _exit_code

Edits = tuple[tuple[str, str], ...]


class Command:
    """`dagrl run` in an empty working folder, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def refused(self, file: Path | str, *arguments: str, verb: str = "run") -> str:
        """What a command prints that must be refused without a trace."""
        before = sorted(self.folder.rglob("*"))
        out = ("--out", str(self.folder / "out")) if verb == "run" and "--out" not in arguments else ()
        self._monkeypatch.chdir(self.folder)
        self._monkeypatch.setattr(sys, "argv", ["dagrl", verb, str(file), *out, *arguments])
        code = _exit_code()
        printed = self._capsys.readouterr()
        assert code == 2, printed.err
        assert printed.out == ""
        assert "Traceback" not in printed.err
        assert "site-packages" not in printed.err
        left = [path for path in sorted(self.folder.rglob("*")) if "__pycache__" not in path.parts]
        assert left == [path for path in before if "__pycache__" not in path.parts]
        return printed.err


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(tmp_path, capsys, monkeypatch)


def line_of(file: Path, text: str) -> str:
    """FILE:LINE of the first line that holds the text, as messages show it from the file's folder."""
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if text in line)
    return f"{file.name}:{number}"


NODES = '''
from jaxtyping import Float32, Int64
from torch import Tensor
from dagrl import Metrics, node


@node(writes="rewards")
def whole_rewards(response_lengths: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Rewards of the wrong dtype."""
    return response_lengths


@node(writes="rewards")
def token_rewards(rollout_logprobs: Float32[Tensor, "B T"]) -> Float32[Tensor, "B T"]:
    """Rewards of the wrong rank."""
    return rollout_logprobs


@node()
def watch(rewards: Float32[Tensor, " B"]) -> Metrics:
    """A root."""
    return Metrics()
'''
WITH_NODES = (
    "from dagrl.nodes import (",
    "from own_nodes import token_rewards, watch, whole_rewards\nfrom dagrl.nodes import (",
)
IN_STEP = "        update_policy(\n"
OTHER_PIPELINE = (
    '    with Pipeline("other") as other:\n'
    "        foreign = prompts(data=cfg.data, batch_size=4)\n"
    '    with Pipeline("grpo"'
)
UPDATE = "actor, rollout, old, reference, advantage,"

#: id -> edits of pipelines/grpo.py, a text on the line at fault, and what the message must say.
EDITED: dict[str, tuple[Edits, str, tuple[str, ...]]] = {
    "missing column": (
        ((UPDATE, "actor, rollout, old, reference,"),),
        IN_STEP.strip(),
        (
            "`update_policy` reads `advantages: f32[B T]`",
            "inputs",
            "`grpo_advantage` writes `advantages`: pass its output",
        ),
    ),
    "ref left out while kl > 0": (
        (("        reference = ref_logprob(ref, rollout)\n", ""), (UPDATE, "actor, rollout, old, advantage,")),
        IN_STEP.strip(),
        ("reads `ref_logprobs", "* kl_loss(kind='k3')`", "`ref_logprobs` is written by ", "`ref_logprob`"),
    ),
    "two writers": (
        (
            ("verify(batch, rollout)\n", "verify(batch, rollout)\n        again = verify(batch, rollout)\n"),
            ("grpo_advantage(rollout, reward)", "grpo_advantage(rollout, reward, again)"),
        ),
        "grpo_advantage(rollout, reward, again)",
        ("2 edges into it carry that column", "`verify` (", "`verify#2` (", ".only("),
    ),
    "wrong dtype": (
        (WITH_NODES, ("reward = verify(batch, rollout)", "reward = whole_rewards(rollout)")),
        "grpo_advantage(rollout, reward)",
        (
            "reads `rewards: f32[B]`, but `whole_rewards` writes it as `i64[B]`",
            "own_nodes.py:7",
            "make `whole_rewards` write f32[B]",
        ),
    ),
    "wrong rank": (
        (WITH_NODES, ("reward = verify(batch, rollout)", "reward = token_rewards(rollout)")),
        "grpo_advantage(rollout, reward)",
        ("`token_rewards` writes it as `f32[B T]`", "make `token_rewards` write f32[B]"),
    ),
    "unknown option": (
        (("temperature=cfg.temperature", "temprature=cfg.temperature"),),
        "temprature",
        ("`generate` has no option `temprature`", "did you mean `temperature`?"),
    ),
    "missing option": (
        (("generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=0.0)", "generate(actor, batch)"),),
        "generate(actor, batch)",
        ("`generate` needs the option `max_new_tokens`", "pass `max_new_tokens=...`"),
    ),
    "option of another type": (
        (("batch_size=1024", 'batch_size="1024"'),),
        'batch_size="1024"',
        ("`prompts` got `batch_size='1024'`: it should be a valid integer", "pass `batch_size` as int"),
    ),
    "equal names": (
        (
            ("verify(batch, rollout)", 'verify(batch, rollout, name="score")'),
            ("grpo_advantage(rollout, reward)", 'grpo_advantage(rollout, reward, name="score")'),
        ),
        'grpo_advantage(rollout, reward, name="score")',
        ("two calls are named `score`; the other is at edited.py:", "rename one of them"),
    ),
    "two prompts calls joined": (
        (
            (
                "        old = old_logprob",
                "        second = prompts(data=cfg.data, batch_size=4)\n        old = old_logprob",
            ),
            ("verify(batch, rollout)", "verify(prompts(data=cfg.data, batch_size=8), rollout)"),
            ("old_logprob(actor, rollout)", "old_logprob(actor, rollout, second)"),
        ),
        "verify(prompts(",
        ("joins edges of different `prompts` calls", "`prompts#2`", "one `prompts` call"),
    ),
    "edge of another pipeline": (
        (('    with Pipeline("grpo"', OTHER_PIPELINE), ("verify(batch, rollout)", "verify(foreign, rollout)")),
        "verify(foreign, rollout)",
        ("`verify` was passed an edge of pipeline `other`", "call `prompts` again inside pipeline `grpo`"),
    ),
    "tensor in a pipeline": (
        (
            ("from dagrl.nodes import (", "import torch\nfrom dagrl.nodes import ("),
            ("verify(batch, rollout)", "verify(batch, rollout, torch.zeros(4))"),
        ),
        "torch.zeros(4)",
        ("`verify` was passed a Tensor inside pipeline `grpo`", "options go by keyword"),
    ),
    "number in a pipeline": (
        (("verify(batch, rollout)", "verify(batch, rollout, 3)"),),
        "verify(batch, rollout, 3)",
        ("`verify` was passed a int inside", "options go by keyword"),
    ),
    "no worker group": (
        (("old_logprob(actor, rollout)", "old_logprob(rollout)"),),
        "old_logprob(rollout)",
        ("`old_logprob` runs on one worker group (`actor: Policy`), got none", "pass one"),
    ),
    "two worker groups": (
        (("old_logprob(actor, rollout)", "old_logprob(actor, ref, rollout)"),),
        "old_logprob(actor, ref",
        ("got `actor`, `ref`", "pass one"),
    ),
    "worker group for a node without role": (
        (("verify(batch, rollout)", "verify(actor, batch, rollout)"),),
        "verify(actor,",
        ("`verify` runs on no model, but was passed worker group `actor`", "drop `actor`"),
    ),
    "dead node": (
        ((IN_STEP, "        verify(batch, rollout)\n" + IN_STEP),),
        "        verify(batch, rollout)",
        ("nobody takes the output of `verify#2`", "drop the call"),
    ),
    "no root": (
        (("report(batch, verify(batch, answer))", "verify(batch, answer)"),),
        'Pipeline("eval"',
        ("pipeline `eval` ends in no call with an effect", "`report`"),
    ),
    "frozen policy trained": (
        ((", optimizer=optimizer", ""),),
        IN_STEP.strip(),
        ("`actor`, whose policy is frozen", "`optimizer=adamw(lr=...)`"),
    ),
    "group of one": (
        (("n=cfg.n", "n=1"),),
        "grpo_advantage(",
        ("`prompts` has n=1", "raise n"),
    ),
    "greedy rollouts in ratios": (
        (("temperature=cfg.temperature", "temperature=0.0"),),
        "old_logprob(",
        ("`generate` has temperature=0", "sample at a temperature above 0"),
    ),
    "misspelt node": (
        (("    verify,\n", "    verifi,\n"),),
        "from dagrl.nodes import (",
        ("ImportError: cannot import `verifi` from `dagrl.nodes`", "did you mean `verify`?"),
    ),
    "name that is not imported": (
        (("    verify,\n", ""),),
        "verify(batch, rollout)",
        ("NameError", "did you mean `verify`? define or import `verify` first"),
    ),
    "module that does not exist": (
        (("from typing import Literal", "import not_there_at_all\nfrom typing import Literal"),),
        "import not_there_at_all",
        ("ModuleNotFoundError", "install it, or put the file beside the pipeline"),
    ),
    "syntax": (
        (("    return step, held_out", "    return step held_out"),),
        "return step held_out",
        ("SyntaxError", "mend the syntax"),
    ),
    "build raises": (
        (("    return step, held_out", '    raise ValueError("not today")'),),
        "not today",
        ("ValueError: not today", "mend that line"),
    ),
    "build returns something else": (
        (("    return step, held_out", "    return [step, held_out]"),),
        "def build",
        ("`build` returned list, not a Pipeline", "return step"),
    ),
    "build returns nothing": (
        (("    return step, held_out", "    pass"),),
        "def build",
        ("`build` returned NoneType", "return step"),
    ),
    "build takes no argument": (
        (("def build(cfg: Config)", "def build()"),),
        "def build",
        ("`build` does not take one argument", "def build(cfg: Config)"),
    ),
    "no build": (
        (("def build(", "def make("),),
        "GRPO (arXiv",
        ("the file defines no function `build`", "def build(cfg: Config)"),
    ),
    "no Config": (
        (("class Config:", "class Settings:"), ("cfg: Config", "cfg: Settings")),
        "GRPO (arXiv",
        ("the file defines no `Config`", "@dataclass"),
    ),
    "Config of an undefined type": (
        (('Literal["bf16", "fp32"] = "bf16"', '"Litteral[str]" = "bf16"'),),
        "class Config",
        ("uses `Litteral`, which does not resolve", "import it at module level"),
    ),
    "Config refuses its values": (
        (
            (
                "    workers: int = 0",
                '    def __post_init__(self):\n        raise ValueError("too few")\n    workers: int = 0',
            ),
        ),
        "too few",
        ("ValueError: too few", "mend that line"),
    ),
    "default of another type": (
        (("    n: int = ", '    n: int = "many"  # '),),
        "n: int",
        ("`n`: got 'many'; it should be a valid integer", "declared `n: int`"),
    ),
    "unknown loss option": (
        (("ppo_clip(eps=cfg.clip)", "ppo_clip(epz=cfg.clip)"),),
        "ppo_clip(epz",
        ("`ppo_clip` has no option `epz`", "did you mean `eps`?"),
    ),
    "loss value out of range": (
        (("ppo_clip(eps=cfg.clip)", "ppo_clip(eps=1.5)"),),
        "ppo_clip(eps=1.5)",
        ("`eps` is 1.5", "between 0 and 1"),
    ),
    "loss that was not called": (
        (('loss=ppo_clip(eps=cfg.clip) + cfg.kl * kl_loss(kind="k3")', "loss=ppo_clip"),),
        IN_STEP.strip(),
        ("got `loss=<loss ppo_clip>`: it should be a LossTerms", "pass `loss` as LossTerms"),
    ),
    "loss plus a number": (
        (('cfg.kl * kl_loss(kind="k3")', "cfg.kl"),),
        "+ cfg.kl,",
        ("a loss is added to a loss, not to 0.", "mend that line"),
    ),
    "all coefficients 0": (
        (("ppo_clip(eps=cfg.clip) + cfg.kl", "0 * ppo_clip(eps=cfg.clip) + 0"),),
        IN_STEP.strip(),
        ("in which every coefficient is 0", "other than 0"),
    ),
    "adamw values": (
        (("betas=(0.9, 0.99)", "betas=(0.9, 1.5)"),),
        'WorkerGroup("actor"',
        ("`adamw` got betas=(0.9, 1.5)", "`betas` is two numbers from 0 to below 1"),
    ),
    "adamw types": (
        (("adamw(lr=cfg.lr", 'adamw(lr="high"'),),
        'WorkerGroup("actor"',
        ("`adamw` got `lr='high'`", "pass `lr` as float"),
    ),
    "model that is no policy": (
        (
            (
                'WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=pool)',
                'WorkerGroup("ref", cfg.model, pool=pool)',
            ),
        ),
        'WorkerGroup("ref"',
        ("worker group `ref` has model='zoo:tiny', which is no ModelSpec", 'policy("zoo:tiny")'),
    ),
    "pool that is a number": (
        (("process_on_nodes=[cfg.workers]", "process_on_nodes=cfg.workers"),),
        "process_on_nodes=cfg.workers",
        ("resource pool `main` has process_on_nodes=0", "[8, 8]"),
    ),
    "pipeline in a pipeline": (
        (
            ('    with Pipeline("eval"', '        with Pipeline("eval"'),
            ("        batch = prompts(data=cfg.data, split", "            batch = prompts(data=cfg.data, split"),
            ("        answer =", "            answer ="),
            ("        report(", "            report("),
        ),
        'Pipeline("eval"',
        ("pipeline `eval` is opened inside pipeline `grpo`", "side by side"),
    ),
    "computing with an edge": (
        (("verify(batch, rollout)", "verify(batch, rollout).rewards + 1"),),
        "rewards + 1",
        ("an edge has no `rewards`", "compute with them in a @node"),
    ),
    "misspelt column in rename": (
        (("verify(batch, rollout)", 'verify(batch, rollout).rename(reward="rewards")'),),
        ".rename(",
        ("`rename` names `reward`, which the edge from `verify` does not carry", "did you mean `rewards`?"),
    ),
}


@pytest.mark.parametrize("kind", EDITED, ids=lambda kind: kind.replace(" ", "-"))
def test_a_broken_pipeline_file(kind: str, command: Command) -> None:
    edits, at, said = EDITED[kind]
    (command.folder / "own_nodes.py").write_text(NODES)
    file = edited_pipeline(command.folder, *edits)
    message = command.refused(file)
    place = line_of(file, at)
    assert re.search(rf"^\s+at +{re.escape(place)}$", message, re.MULTILINE), f"{place} is missing in\n{message}"
    for words in said:
        assert words in message, message


@pytest.mark.parametrize(
    ("assignments", "at", "said"),
    [
        (["sttps=3"], "class Config", ("no field `sttps`", "did you mean `steps`?")),
        (["n=four"], "n: int", ("`n`: got 'four'; it should be a valid integer", "declared `n: int`")),
        (["lr=fast"], "lr: float", ("`lr`: got 'fast'", "declared `lr: float`")),
        (["precision=fp8"], "precision: Literal", ("it should be 'bf16' or 'fp32'",)),
        (["n=none"], "n: int", ("got 'none'",)),
        (["lr=0"], 'WorkerGroup("actor"', ("`adamw` got lr=0.0", "`lr` is a finite number above 0")),
        (["workers=2"], "ResourcePool(", ("needs 2 processes, the local executor has 1", "ask for at most 1")),
        (["workers=-1"], "ResourcePool(", ("process_on_nodes=[-1]", "[8, 8]")),
        (["model=zoo:tiyn"], 'WorkerGroup("actor"', ("no model named `tiyn`", "did you mean `tiny`?")),
        (["model=./not-here"], 'WorkerGroup("actor"', ("no model folder `./not-here`", "an existing folder")),
        (["data=zoo:lager"], "batch = prompts(", ("no task named `lager`", "did you mean `larger`?")),
        (["data=mine.jsonl"], "batch = prompts(", ("data `mine.jsonl` is not known", "`zoo:larger`")),
        (["n=0"], "batch = prompts(", ("`n` is 0", "at least 1")),
        (["batch_size=0"], "batch = prompts(", ("`batch_size` is 0", "at least 1")),
        (["max_new_tokens=0"], "rollout = generate(", ("`max_new_tokens` is 0", "at least 1")),
        (["temperature=-1"], "rollout = generate(", ("`temperature` is -1.0", "0 (greedy) or more")),
        (["mini_batch_size=-4"], "update_policy(", ("`mini_batch_size` is -4", "at least 0")),
        (["batch_size=100000000"], "batch = prompts(", ("fewer than batch_size=100000000", "lower `batch_size`")),
        (["steps=0"], 'Pipeline("grpo"', ("runs for steps=0", "--steps 100")),
        (["eval_every=0"], 'Pipeline("eval"', ("has every=0", "at least 1")),
        (["clip=0"], "ppo_clip(eps", ("`eps` is 0.0", "between 0 and 1")),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else None,
)
def test_wrong_values(assignments: list[str], at: str, said: tuple[str, ...], command: Command) -> None:
    file = edited_pipeline(command.folder)
    message = command.refused(file, *(part for text in assignments for part in ("--set", text)))
    assert line_of(file, at) in message
    for words in said:
        assert words in message, message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "n"], ("`--set n` is not `key=value`", "`--set n=8`")),
        (["--set", "=8"], ("`--set =8` is not `key=value`",)),
        (["--steps", "0"], ("--steps", "x>=1")),
        (["--steps", "x"], ("--steps", "not a valid integer")),
        (["--seed", "x"], ("--seed", "not a valid integer")),
        (["--executor", "ray"], ("--executor", "local")),
        (["--sets", "n=8"], ("No such option", "--set")),
    ],
    ids=" ".join,
)
def test_wrong_command_lines(arguments: list[str], said: tuple[str, ...], command: Command) -> None:
    message = command.refused(GRPO, *arguments)
    for words in said:
        assert words in message, message


@pytest.mark.parametrize(("file", "said"), [("gone.py", "there is no file `gone.py`"), (".", "is a directory")])
@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_file_that_is_none(file: str, said: str, verb: str, command: Command) -> None:
    assert said in command.refused(file, verb=verb)


def test_a_file_that_is_not_python(command: Command) -> None:
    (command.folder / "notes.txt").write_text("steps: 3\n")
    assert "is no Python file" in command.refused("notes.txt")
    (command.folder / "latin.py").write_bytes(b"# \xe9\n")
    assert "`latin.py` cannot be read" in command.refused("latin.py")


def test_a_run_folder_that_is_not_empty(command: Command) -> None:
    (command.folder / "taken").mkdir()
    (command.folder / "taken" / "file").touch()
    message = command.refused(GRPO, "--out", str(command.folder / "taken"))
    assert "exists and is not empty" in message
    assert "another `--out`" in message


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "no model folder"),
        (lambda folder: folder.mkdir(), "has no config.json"),
        (lambda folder: (folder.mkdir(), (folder / "config.json").write_text("{}")), "has no weights"),
    ],
    ids=["missing", "empty", "no weights"],
)
def test_model_folders(make: Callable[[Path], object], said: str, command: Command) -> None:
    make(command.folder / "model")
    message = command.refused(GRPO, "--set", f"model={command.folder}/model")
    assert said in message
    assert "Hugging Face" in message


BAD_NODE = '''
from jaxtyping import Float
from torch import Tensor
from dagrl import node


@node(writes="count")
def tally(rewards: Float[Tensor, " B"], size: int) -> Float[Tensor, " B"]:
    """No contract at all."""
    return rewards
'''


def test_a_signature_that_is_no_contract(command: Command) -> None:
    """The faults of a user's node come with the node's name, its file and who imported it."""
    (command.folder / "bad_node.py").write_text(BAD_NODE)
    edit = ("from dagrl.nodes import (", "from bad_node import tally\nfrom dagrl.nodes import (")
    message = command.refused(edited_pipeline(command.folder, edit))
    assert "3 problems" in message
    assert message.count("bad_node.py:7") == 3
    assert len(re.findall(r"^\s+in +node `tally`$", message, re.MULTILINE)) == 3
    for words in ("`rewards` must name one dtype", "`size` is no column", "its result must name one dtype"):
        assert words in message


def test_an_error_below_the_pipeline_file_shows_the_way_there(command: Command) -> None:
    (command.folder / "below.py").write_text("def values():\n    return {}['key']\n")
    edits = (
        ("from dagrl.nodes import (", "from below import values\nfrom dagrl.nodes import ("),
        ("    optimizer = adamw", "    values()\n    optimizer = adamw"),
    )
    file = edited_pipeline(command.folder, *edits)
    message = command.refused(file)
    assert "KeyError: 'key'" in message
    assert "below.py:2" in message
    assert line_of(file, "    values()") in message


MANY: Edits = (
    ("process_on_nodes=[cfg.workers]", "process_on_nodes=[4]"),
    ("betas=(0.9, 0.99)", "betas=(0.9, 1.5)"),
    ("policy(cfg.model, precision=cfg.precision)", 'policy("zoo:none", precision="fp8")'),
    ("n=cfg.n)", "n=1)"),
    ("temperature=cfg.temperature", "temprature=0.5"),
    ("verify(batch, rollout)", "verify(actor, batch, rollout)"),
    ("old_logprob(actor, rollout)", "old_logprob(rollout)"),
    (UPDATE, "actor, rollout, old, reference, 3,"),
    ("ppo_clip(eps=cfg.clip)", "ppo_clip(epz=cfg.clip)"),
    ('split="test"', 'split="tset"'),
    ("report(batch, verify(batch, answer))", "report(batch, answer)"),
)


def test_all_faults_of_a_file_come_in_one_message_in_file_order(command: Command) -> None:
    message = command.refused(edited_pipeline(command.folder, *MANY))
    order = [
        "needs 4 processes",
        "betas=(0.9, 1.5)",
        "`precision='fp8'`",
        "no option `temprature`",
        "`verify` runs on no model",
        "`prompts` has n=1",
        "`old_logprob` runs on one worker group",
        "was passed a int",
        "reads `advantages",
        "no option `epz`",
        "named `tset`",
        "`report` reads `rewards",
    ]
    places = [message.find(words) for words in order]
    assert -1 not in places, f"{order[places.index(-1)]} is missing in\n{message}"
    assert message.count("CompileError") == 1
    lines = [int(number) for number in re.findall(r"^\s+at +edited\.py:(\d+)$", message, re.MULTILINE)]
    assert len(lines) >= len(order)
    assert lines == sorted(lines)


#: Runs the command and then tells which heavy packages it loaded.
SPY = """
import sys
from dagrl.cli.main import _exit_code
sys.argv = ["dagrl", *sys.argv[1:]]
code = _exit_code()
print("LOADED", *sorted({name.split(".")[0] for name in sys.modules} & {"ray", "vllm", "transformers", "tensordict"}))
sys.exit(code)
"""


@pytest.mark.parametrize("program", [["-c", SPY], ["-m", "dagrl.cli"]], ids=["spied", "as a module"])
def test_in_a_process_of_its_own_nothing_is_started(program: list[str], tmp_path: Path) -> None:
    file = edited_pipeline(tmp_path, *MANY)
    arguments = ["run", file.name, "--out", "out"]
    done = subprocess.run(
        [sys.executable, *program, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "CompileError: pipelines `grpo`, `eval` do not compile" in done.stderr
    assert line_of(file, "temprature") in done.stderr
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "runs").exists()
    if program[0] == "-c":
        assert done.stdout.strip() == "LOADED"


def test_the_console_script_refuses_too(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("dagrl")
    file = edited_pipeline(tmp_path, ("    verify,\n", "    verifi,\n"))
    done = subprocess.run([script, "plan", file.name], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "did you mean `verify`?" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
