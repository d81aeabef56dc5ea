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
OWN_UPDATE = "update_policy(actor, answer, loss=kl_loss())"
IN_STEP = "        update_policy(\n"
OTHER_PIPELINE = (
    '    with Pipeline("other") as other:\n'
    "        foreign = prompts(data=cfg.data, batch_size=4)\n"
    "    with Pipeline(name"
)
UPDATE = "actor, rollout, old, reference, advantages,"

#: Calls for the step of pipelines/grpo.py, a fault in each, and the line and words by which a message tells it.
FAULTY_CALLS = """        reward = verify(batch, rollout)
        twice = verify(batch, rollout, name="prompts")
        lacking = grpo_advantage(rollout, name="lacking")
        both = grpo_advantage(rollout, reward, twice, name="both")
        dtype = grpo_advantage(rollout, whole_rewards(rollout), name="dtype")
        rank = grpo_advantage(rollout, token_rewards(rollout), name="rank")
        strange = verify(foreign, rollout, name="strange")
        second = prompts(data=cfg.data, batch_size=8, name="second")
        mixed = verify(second, rollout, name="mixed")
        tensor = verify(batch, rollout, [1.0], name="tensor")
        unbound = old_logprob(rollout, name="unbound")
        watch(reward, lacking, both, dtype, rank, strange, mixed, tensor, unbound, name="watch_all")
        verify(batch, rollout, name="dead")
"""
FAULTS = [
    ("process_on_nodes=[64]", "resource pool `main` needs 64 processes, the local executor has 1"),
    ('name="prompts"', "two calls are named `prompts`"),
    ('name="lacking"', "`lacking` reads `rewards: f32[B]`, but no edge into it carries that column"),
    ('name="both"', "`both` reads `rewards`, and 2 edges into it carry that column"),
    ('name="dtype"', "`dtype` reads `rewards: f32[B]`, but `whole_rewards` writes it as `i64[B]`"),
    ('name="rank"', "`rank` reads `rewards: f32[B]`, but `token_rewards` writes it as `f32[B T]`"),
    ('name="strange"', "`verify` was passed an edge of pipeline `other`"),
    ('name="mixed"', "`mixed` joins edges of different `prompts` calls"),
    ('name="tensor"', "`verify` was passed a list inside pipeline `grpo`"),
    ('name="unbound"', "`old_logprob` runs on one worker group (`actor: Policy`), got none"),
    ('name="dead"', "nobody takes the output of `dead`, and it changes nothing by itself"),
    (IN_STEP.strip(), "`update_policy` reads `ref_logprobs: f32[B T]`, but no edge into it carries that column"),
    ("return verifi(", "NameError: name 'verifi' is not defined"),
]

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
        (("        reference = ref_logprob(ref, rollout)\n", ""), (UPDATE, "actor, rollout, old, advantages,")),
        IN_STEP.strip(),
        ("reads `ref_logprobs", "* kl_loss(kind='k3')`", "`ref_logprobs` is written by ", "`ref_logprob`"),
    ),
    "two writers": (
        (
            ("verify(batch, rollout)\n", "verify(batch, rollout)\n        again = verify(batch, rollout)\n"),
            ("advantage(rollout, reward)", "advantage(rollout, reward, again)"),
        ),
        "advantage(rollout, reward, again)",
        ("2 edges into it carry that column", "`verify` (", "`verify#2` (", ".only("),
    ),
    "wrong dtype": (
        (WITH_NODES, ("reward = verify(batch, rollout)", "reward = whole_rewards(rollout)")),
        "advantage(rollout, reward)",
        (
            "reads `rewards: f32[B]`, but `whole_rewards` writes it as `i64[B]`",
            "own_nodes.py:7",
            "make `whole_rewards` write f32[B]",
        ),
    ),
    "wrong rank": (
        (WITH_NODES, ("reward = verify(batch, rollout)", "reward = token_rewards(rollout)")),
        "advantage(rollout, reward)",
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
            ("advantage(rollout, reward)", 'advantage(rollout, reward, name="score")'),
        ),
        'advantage(rollout, reward, name="score")',
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
    "two steps": (
        (
            ('    with Pipeline("eval", every=cfg.eval_every)', '    with Pipeline("second", steps=3)'),
            ("        report(batch, verify(batch, answer))", "        " + OWN_UPDATE),
        ),
        'Pipeline("second"',
        (
            "pipeline `second` comes after the step, so it evaluates, but has steps=3",
            "`update_policy` changes a model, but pipeline `second` only evaluates",
            "which `build` returns first",
        ),
    ),
    "the evaluation first": (
        (("    return step, held_out(cfg, actor)", "    return held_out(cfg, actor), step"),),
        'Pipeline("eval"',
        ("pipeline `eval` comes first, so it is the step, but has every=60", "return the step first"),
    ),
    "one pipeline twice": (
        (("    return step, held_out(cfg, actor)", "    return step, step"),),
        "Pipeline(name",
        ("two pipelines are named `grpo`", "its own name"),
    ),
    "a pipeline without calls": (
        (("    return step, held_out(cfg, actor)", '    return step, Pipeline("empty")'),),
        'Pipeline("empty")',
        ("pipeline `empty` has no calls", "inside its `with` block"),
    ),
    "a pipeline name of two words": (
        (("Pipeline(name", 'Pipeline("my step"'),),
        'Pipeline("my step"',
        ("a pipeline is named 'my step'", "letters, digits"),
    ),
    "nodes outside of a pipeline": (
        (("    with Pipeline(name, steps=cfg.steps) as step:", "    if True:"),),
        "batch = prompts(",
        ("TypeError: prompts() missing a required argument: 'positions'", "inside `with Pipeline(...)`"),
    ),
    "an edge after its pipeline": (
        (("    return step, held_out(cfg, actor)", "    report(reward)\n    return step, held_out(cfg, actor)"),),
        "    report(reward)",
        ("`report` was given an edge, but no pipeline is open here", "inside `with Pipeline(...)`"),
    ),
    "a pipeline as input": (
        (("verify(batch, rollout)", "verify(step, rollout)"),),
        "verify(step, rollout)",
        ("`verify` was passed a Pipeline inside pipeline `grpo`", "takes edges"),
    ),
    "an edge by keyword": (
        (("verify(batch, rollout)", "verify(batch, response_text=rollout)"),),
        "response_text=rollout",
        ("`verify` was passed `response_text=` by keyword", "by position"),
    ),
    "an edge unpacked": (
        (("reward = verify(batch, rollout)", "reward, _ = verify(batch, rollout)"),),
        "reward, _ =",
        ("the edge from `verify` cannot be unpacked", "narrow it with `only`"),
    ),
    "a batch larger than the data": (
        (("batch_size=cfg.batch_size", "batch_size=10**6"),),
        "batch_size=10**6",
        ("`zoo:larger` has ", "fewer than batch_size=1000000", "lower `batch_size`"),
    ),
    "edge of another pipeline": (
        (("    with Pipeline(name", OTHER_PIPELINE), ("verify(batch, rollout)", "verify(foreign, rollout)")),
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
        ("`verify` was passed an int inside", "options go by keyword"),
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
        "advantage(rollout",
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
        (("    return step, held_out(cfg, actor)", "    return step held_out(cfg, actor)"),),
        "return step held_out",
        ("SyntaxError", "mend the syntax"),
    ),
    "build raises": (
        (("    return step, held_out(cfg, actor)", '    raise ValueError("not today")'),),
        "not today",
        ("ValueError: not today", "mend that line"),
    ),
    "build raises what has no words": (
        (("    return step, held_out(cfg, actor)", "    raise KeyError"),),
        "raise KeyError",
        ("KeyError: no message", "mend that line"),
    ),
    "build ends the program": (
        (("    return step, held_out(cfg, actor)", "    raise SystemExit(0)"),),
        "raise SystemExit",
        ("SystemExit: 0", "return normally"),
    ),
    "build returns something else": (
        (("    return step, held_out(cfg, actor)", "    return [step, held_out(cfg, actor)]"),),
        "def build",
        ("`build` returned list, not a Pipeline", "return step"),
    ),
    "build returns nothing": (
        (("    return step, held_out(cfg, actor)", "    pass"),),
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
    "Config that is no dataclass": (
        (("@dataclass(frozen=True, kw_only=True)\n", ""),),
        "GRPO (arXiv",
        ("`Config` is not a dataclass", "@dataclass"),
    ),
    "Config with a default that is shared": (
        (("    steps: int = 240", "    steps: int = 240\n    tags: list[str] = []"),),
        "@dataclass",
        ("ValueError: mutable default", "default_factory"),
    ),
    "Config that needs a value": (
        (("    steps: int = 240", "    steps: int"),),
        "steps: int",
        ("`steps`: it has no default and was not set", "--set steps=..."),
    ),
    "a number as text": (
        (("    lr: float = 2.5e-4", '    lr: float = "1e-6"'),),
        "lr: float",
        ("`lr`: got '1e-6'; it should be a valid number", "declared `lr: float`"),
    ),
    "a number as text for a node": (
        (("temperature=cfg.temperature", 'temperature="0.7"'),),
        'temperature="0.7"',
        ("`generate` got `temperature='0.7'`", "pass `temperature` as float"),
    ),
    "no Config": (
        (("class Config(", "class Settings("), ("cfg: Config", "cfg: Settings")),
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
        (('loss=loss + cfg.kl * kl_loss(kind="k3")', "loss=ppo_clip"),),
        IN_STEP.strip(),
        ("got `loss=<loss ppo_clip>`: it should be a LossTerms", "pass `loss` as LossTerms"),
    ),
    "loss plus a number": (
        (('cfg.kl * kl_loss(kind="k3")', "cfg.kl"),),
        "+ cfg.kl,",
        ("a loss is added to a loss, not to 0.", "mend that line"),
    ),
    "all coefficients 0": (
        (("loss + cfg.kl", "0 * loss + 0"),),
        IN_STEP.strip(),
        ("in which every coefficient is 0", "other than 0"),
    ),
    "a scoring micro-batch below 0": (
        (("old_logprob(actor, rollout)", "old_logprob(actor, rollout, micro_batch_size=-1)"),),
        "micro_batch_size=-1",
        ("`micro_batch_size` is -1", "at least 0"),
    ),
    "an option that is no number": (
        (("temperature=cfg.temperature", 'temperature=float("nan")'),),
        'float("nan")',
        ("`generate` got `temperature=nan`: it is not a number", "pass `temperature` as float"),
    ),
    "adamw values": (
        (("betas=(0.9, 0.99)", "betas=(0.9, 1.5)"),),
        "model = policy(",
        ("`adamw` got betas=(0.9, 1.5)", "`betas` is two numbers from 0 to below 1"),
    ),
    "adamw types": (
        (("adamw(lr=cfg.lr", 'adamw(lr="high"'),),
        "model = policy(",
        ("`adamw` got `lr='high'`", "pass `lr` as float"),
    ),
    "model that is no policy": (
        (
            (
                'WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=actor.pool)',
                'WorkerGroup("ref", cfg.model, pool=actor.pool)',
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
            ("        old = old_logprob", "        inner = held_out(cfg, actor)\n        old = old_logprob"),
            ("    return step, held_out(cfg, actor)", "    return step, inner"),
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
        (["lr=0"], "model = policy(", ("`adamw` got lr=0.0", "`lr` is a finite number above 0")),
        (["workers=2"], "ResourcePool(", ("needs 2 processes, the local executor has 1", "ask for at most 1")),
        (["workers=-1"], "ResourcePool(", ("process_on_nodes=[-1]", "[8, 8]")),
        (["model=zoo:tiyn"], "model = policy(", ("no model named `tiyn`", "did you mean `tiny`?")),
        (["model=./not-here"], "model = policy(", ("no model folder `./not-here`", "an existing folder")),
        (["data=zoo:lager"], "batch = prompts(", ("no task named `lager`", "did you mean `larger`?")),
        (["data=mine.jsonl"], "batch = prompts(", ("data `mine.jsonl` is not known", "`zoo:larger`")),
        (["n=0"], "batch = prompts(", ("`n` is 0", "at least 1")),
        (["batch_size=0"], "batch = prompts(", ("`batch_size` is 0", "at least 1")),
        (["max_new_tokens=0"], "rollout = generate(", ("`max_new_tokens` is 0", "at least 1")),
        (["temperature=-1"], "rollout = generate(", ("`temperature` is -1.0", "0 (greedy) or more")),
        (["mini_batch_size=-4"], "update_policy(", ("`mini_batch_size` is -4", "at least 0")),
        (["batch_size=100000000"], "batch = prompts(", ("fewer than batch_size=100000000", "lower `batch_size`")),
        (["steps=0"], "Pipeline(name", ("has steps=0", "at least 1; None: as many as `--steps` says")),
        (["steps=-5"], "Pipeline(name", ("has steps=-5", "at least 1")),
        (["kl=none"], "kl: float", ("got 'none'", "declare `kl: float | None`")),
        (["kl=false"], "kl: float", ("got 'false'", "declare `kl: float | None`")),
        (["kl=nan"], "kl_loss(kind", ("has a coefficient that is no number", "finite")),
        (["n=four", "n=five"], "n: int", ("`n`: got 'five'",)),
        (["n=4.5"], "n: int", ("`n`: got '4.5'",)),
        (["optimizer.lr=1"], "class Config", ("no field `optimizer.lr`", "without dots", "did you mean `lr`?")),
        (["workers=100"], "ResourcePool(", ("needs 100 processes, the local executor has 1",)),
        (["data="], "batch = prompts(", ("`data` is empty", "`zoo:larger`")),
        (["model="], "model = policy(", ("the model reference is empty", "`zoo:tiny`")),
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


@pytest.mark.parametrize("assignment", ["steps=0", "batch_size=100000000", "eval_every=0", "n=0", "workers=2", "lr=0"])
def test_a_plan_finds_wrong_values_as_a_run_does(assignment: str, command: Command) -> None:
    planned = command.refused(GRPO, "--set", assignment, verb="plan")
    assert planned == command.refused(GRPO, "--set", assignment)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "n"], ("`--set n` is not `key=value`", "`--set n=8`")),
        (["--set", "=8"], ("`--set =8` is not `key=value`",)),
        (["--steps", "0"], ("--steps", "x>=1")),
        (["--steps", "x"], ("--steps", "not a valid integer")),
        (["--seed", "x"], ("--seed", "not a valid integer")),
        (["--executor", "cloud"], ("--executor", "ray", "local")),
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
    (command.folder / "empty.py").write_text("")
    message = command.refused("empty.py")
    assert "the file defines no `Config`" in message
    assert "the file defines no function `build`" in message
    (command.folder / "zeros.py").write_bytes(b"x = 1\n\0\n")
    assert "zeros.py" in command.refused("zeros.py")


def test_files_that_import_each_other(command: Command) -> None:
    (command.folder / "ring_one.py").write_text("from ring_two import second\n\nfirst = 1\n")
    (command.folder / "ring_two.py").write_text("from ring_one import first\n\nsecond = 2\n")
    edit = ("from dagrl.nodes import (", "from ring_one import first\nfrom dagrl.nodes import (")
    file = edited_pipeline(command.folder, edit)
    message = command.refused(file)
    assert "ImportError: cannot import `first` from `ring_one`: the two import each other." in message
    assert re.search(r"at +ring_two\.py:1\n +from +ring_one\.py:1\n +from +edited\.py:", message), message
    assert "into a file of its own" in message
    assert str(command.folder) not in message


@pytest.mark.parametrize("decorator", ["node", "loss"])
def test_a_decorator_without_parentheses(decorator: str, command: Command) -> None:
    lines = ["from dagrl import loss, node", f"@{decorator}", "def mine(rewards):", "    return rewards", ""]
    (command.folder / f"bare_{decorator}.py").write_text("\n".join(lines))
    edit = ("from dagrl.nodes import (", f"from bare_{decorator} import mine\nfrom dagrl.nodes import (")
    message = command.refused(edited_pipeline(command.folder, edit))
    assert f"`@{decorator}` stands without parentheses" in message
    assert f"bare_{decorator}.py:2" in message
    assert f"write `@{decorator}(" in message


def test_a_build_that_calls_itself(command: Command) -> None:
    file = edited_pipeline(command.folder, ("    return step, held_out(cfg, actor)", "    return build(cfg)"))
    message = command.refused(file)
    assert "RecursionError" in message
    assert line_of(file, "return build(cfg)") in message
    assert len(message.splitlines()) < 12


def test_all_that_can_be_wrong_with_a_graph_in_one_message(command: Command) -> None:
    """A node that does not exist ends `build`; what was recorded until then is told all the same."""
    (command.folder / "own_nodes.py").write_text(NODES)
    edits: Edits = (
        WITH_NODES,
        ("process_on_nodes=[cfg.workers]", "process_on_nodes=[64]"),
        ("    with Pipeline(name", OTHER_PIPELINE),
        ("        reference = ref_logprob(ref, rollout)\n", ""),
        (UPDATE, "actor, rollout, old, advantages,"),
        ("        reward = verify(batch, rollout)\n", FAULTY_CALLS),
        ("    return step, held_out(cfg, actor)", "    return verifi(step)"),
    )
    file = edited_pipeline(command.folder, *edits)
    message = command.refused(file)
    for at, words in FAULTS:
        place = line_of(file, at)
        found = re.search(rf"{re.escape(words)}[^\n]*\n\s+at +{re.escape(place)}\n", message)
        assert found, f"{words!r} at {place} is missing in\n{message}"
    lines = [int(number) for number in re.findall(r"^\s+at +edited\.py:(\d+)$", message, re.MULTILINE)]
    assert lines[:-1] == sorted(lines[:-1])


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
        "was passed an int",
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
