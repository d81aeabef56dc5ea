"""What a signature that is a contract says: one test for each row of the table of declarations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import LossColumns, LossTerms, Mean, Metrics, Objects, Policy, node
from dagrl.data.columns import ColumnType
from dagrl.graph.contract import REQUIRED, Read, Result, Role, Write

F32_B = ColumnType("f32", ("B",))
F32_BT = ColumnType("f32", ("B", "T"))


@dataclass(frozen=True)
class Running:
    mean: float = 0.0


class Pair(NamedTuple):
    scores: Float32[Tensor, " B"]
    notes: Objects[str] | None
    flags: Bool[Tensor, "B T"] | None


@node(writes="doubled")
def double(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
    """Twice the reward.

    More words.
    """
    return rewards * 2


def test_one_written_column() -> None:
    contract = double.contract
    assert contract.reads == (Read("rewards", F32_B),)
    assert contract.writes == (Write("doubled", F32_B),)
    assert contract.result == Result("one", state=False, metrics=False)
    assert (contract.role, contract.needs, contract.mutates) == (None, None, False)
    assert (contract.split, contract.rows, contract.alias_of) == ("row", "same", None)
    assert contract.doc == "Twice the reward."
    assert not contract.is_root
    assert contract.at.file == __file__


def test_column_kinds_and_optional_reads() -> None:
    @node()
    def watch(
        values: Float32[Tensor, "B T"],
        response_mask: Bool[Tensor, "B T"],
        response_lengths: Int64[Tensor, " B"],
        messages: Objects[list[dict[str, str]]],
        answers: Objects[str] | None = None,
        rewards: Float32[Tensor, " B"] | None = None,
    ) -> None: ...

    assert watch.contract.reads == (
        Read("values", F32_BT),
        Read("response_mask", ColumnType("bool", ("B", "T"))),
        Read("response_lengths", ColumnType("i64", ("B",))),
        Read("messages", ColumnType("object", ("B",))),
        Read("answers", ColumnType("object", ("B",)), optional=True),
        Read("rewards", F32_B, optional=True),
    )
    assert [str(read) for read in watch.contract.reads[:2]] == ["values: f32[B T]", "response_mask: bool[B T]"]
    assert watch.contract.result.columns is None
    assert watch.contract.is_root


def test_a_named_tuple_writes_its_fields() -> None:
    @node()
    def split_up(rewards: Float32[Tensor, " B"], *, wanted: frozenset[str]) -> Pair: ...

    assert split_up.contract.writes == (
        Write("scores", F32_B),
        Write("notes", ColumnType("object", ("B",)), optional=True),
        Write("flags", ColumnType("bool", ("B", "T")), optional=True),
    )
    assert split_up.contract.result.columns is Pair
    assert split_up.contract.executor_keywords == {"wanted"}
    assert split_up.contract.options == ()


def test_role_needs_and_mutates() -> None:
    @node(mutates=True, split="minibatch")
    def learn(
        actor: Policy,
        columns: LossColumns,
        *,
        loss: LossTerms,
        mini_batch_size: int = 0,
        epochs: int = 1,
        aliases: Mapping[str, str],
    ) -> Metrics: ...

    @node(writes="values")
    def score(critic: Policy, rewards: Float32[Tensor, " B"]) -> Float32[Tensor, "B T"]: ...

    @node(writes="values", needs="rollout")
    def draw(actor: Policy, rewards: Float32[Tensor, " B"]) -> Float32[Tensor, "B T"]: ...

    assert learn.contract.role == Role("actor", Policy)
    assert learn.contract.loss_columns == "columns"
    assert learn.contract.executor_keywords == {"aliases"}
    assert learn.contract.is_root
    assert score.contract.role == Role("critic", Policy)
    assert [one.contract.needs for one in (learn, score, draw)] == ["train", "train", "rollout"]
    assert [one.contract.mutates for one in (learn, score, draw)] == [True, False, False]


def test_options_keep_type_and_default() -> None:
    @node()
    def watch(rewards: Float32[Tensor, " B"], *, size: int, label: str | None = None) -> None: ...

    size, label = watch.contract.options
    assert (size.name, size.annotation, size.default) == ("size", int, REQUIRED)
    assert (label.name, label.default) == ("label", None)
    assert watch.contract.option("size") is size
    assert watch.contract.option("sise") is None
    assert repr(REQUIRED) == "required"


def test_state_comes_between_columns_and_metrics() -> None:
    @node(writes="scaled", split="batch")
    def scale(rewards: Float32[Tensor, " B"], *, state: Running) -> tuple[Float32[Tensor, " B"], Running, Metrics]: ...

    @node(split="batch")
    def follow(rewards: Float32[Tensor, " B"], *, state: Running) -> Running: ...

    assert scale.contract.state is Running
    assert scale.contract.result == Result("one", state=True, metrics=True)
    assert scale.contract.result.num_parts == 3
    assert scale.contract.options == ()
    assert follow.contract.result == Result(None, state=True, metrics=False)


def test_metrics_alone_and_with_a_column() -> None:
    @node()
    def tell(rewards: Float32[Tensor, " B"]) -> Metrics: ...

    @node(writes="scaled")
    def scale(rewards: Float32[Tensor, " B"]) -> tuple[Float32[Tensor, " B"], Metrics]: ...

    assert tell.contract.result == Result(None, state=False, metrics=True)
    assert tell.contract.is_root
    assert scale.contract.result == Result("one", state=False, metrics=True)
    assert not scale.contract.is_root


def test_filter_writes_nothing_and_is_no_root() -> None:
    @node(rows="filter")
    def keep(rewards: Float32[Tensor, " B"]) -> Bool[Tensor, " B"]: ...

    assert keep.contract.rows == "filter"
    assert keep.contract.writes == ()
    assert not keep.contract.is_root


def test_source_reads_positions() -> None:
    @node(rows="source", writes="messages")
    def read(
        positions: Int64[Tensor, " B"], *, data: str, split: str = "train", batch_size: int, n: int = 1
    ) -> Objects[str]: ...

    assert read.contract.positions == "positions"
    assert read.contract.reads == ()
    assert read.contract.rows == "source"
    assert [option.name for option in read.contract.options] == ["data", "split", "batch_size", "n"]


def test_carried_columns_are_no_reads() -> None:
    @node(split="group", writes="advantages")
    def compare(
        rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"], seeds: Int64[Tensor, " B"]
    ) -> Float32[Tensor, " B"]: ...

    assert compare.contract.carried == ("group_ids", "seeds")
    assert [read.name for read in compare.contract.reads] == ["rewards"]
    assert compare.contract.split == "group"


def test_alias_of_names_an_engine_output() -> None:
    @node(writes="old_logprobs", alias_of="new_logprobs")
    def before(actor: Policy, rewards: Float32[Tensor, " B"]) -> Float32[Tensor, "B T"]: ...

    assert before.contract.alias_of == "new_logprobs"


def test_string_annotations_resolve() -> None:
    @node(writes="doubled")
    def double_again(rewards: "Float32[Tensor, ' B']") -> "Float32[Tensor, ' B']":
        return rewards * 2

    assert double_again.contract.reads == (Read("rewards", F32_B),)


def test_outside_a_pipeline_a_node_is_its_function() -> None:
    assert torch.equal(double(torch.tensor([1.0, 2.0])), torch.tensor([2.0, 4.0]))
    assert torch.equal(double(rewards=torch.tensor([3.0])), torch.tensor([6.0]))
    assert double.__name__ == "double"
    assert repr(double) == "<node double>"


def test_outside_a_pipeline_options_and_metrics_are_plain_values() -> None:
    @node()
    def tell(rewards: Float32[Tensor, " B"], *, scale: float = 1.0) -> Metrics:
        return Metrics({"reward": Mean(float(rewards.sum()) * scale, len(rewards))})

    assert tell(torch.tensor([1.0, 3.0]), scale=2.0)["reward"].value == 4.0
