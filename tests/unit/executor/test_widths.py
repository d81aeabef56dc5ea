"""Widths: a join of edges with different P and T pads each column to the widest at its own ends."""

from typing import NamedTuple

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Metrics, Objects, Pipeline, node
from dagrl.compiler import compile_pipelines
from dagrl.errors import NodeError
from dagrl.executor.local import LocalExecutor, Planned, SourceRows
from dagrl.nodes import prompts


class Wide(NamedTuple):
    input_ids: Int64[Tensor, "B S"]
    response_mask: Bool[Tensor, "B T"]


class Narrow(NamedTuple):
    prompt_ids: Int64[Tensor, "B P"]
    values: Float32[Tensor, "B T"]


@node()
def wide(group_ids: Int64[Tensor, " B"], answers: Objects[str]) -> Wide:
    rows = len(group_ids)
    return Wide(torch.ones(rows, 3 + 5, dtype=torch.int64), torch.ones(rows, 5, dtype=torch.bool))


@node()
def narrow(group_ids: Int64[Tensor, " B"], answers: Objects[str]) -> Narrow:
    rows = len(group_ids)
    return Narrow(torch.full((rows, 4), 7), torch.full((rows, 2), 0.5))


def run(pipeline: Pipeline) -> None:
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    executor = LocalExecutor([planned], seed=0, total_steps=1)
    executor.run(planned, 1, {"prompts": SourceRows(torch.arange(2), torch.arange(2))})


def test_joined_columns_are_padded_left_in_p_and_right_in_t() -> None:
    seen = {}

    @node()
    def join(
        input_ids: Int64[Tensor, "B S"],
        response_mask: Bool[Tensor, "B T"],
        prompt_ids: Int64[Tensor, "B P"],
        values: Float32[Tensor, "B T"],
    ) -> Metrics:
        seen.update(input_ids=input_ids, response_mask=response_mask, prompt_ids=prompt_ids, values=values)
        return Metrics()

    with Pipeline("p") as pipeline:
        batch = prompts(data="zoo:larger", batch_size=2)
        join(wide(batch), narrow(batch))
    run(pipeline)
    assert seen["input_ids"][0].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert seen["response_mask"][0].tolist() == [True] * 5
    assert seen["prompt_ids"][0].tolist() == [7, 7, 7, 7]
    assert seen["values"][0].tolist() == [0.5, 0.5, 0, 0, 0]


def test_a_node_cannot_change_the_width_it_reads() -> None:
    @node(writes="returns")
    def shrink(values: Float32[Tensor, "B T"]) -> Float32[Tensor, "B T"]:
        return values[:, :1].clone()

    @node()
    def end(returns: Float32[Tensor, "B T"]) -> Metrics:
        return Metrics()

    with Pipeline("p") as pipeline:
        end(shrink(narrow(prompts(data="zoo:larger", batch_size=2))))
    with pytest.raises(NodeError, match="`shrink` returned columns 1 wide in T, its inputs are 2 wide"):
        run(pipeline)


def test_columns_of_one_node_agree_on_their_widths() -> None:
    class Torn(NamedTuple):
        response_mask: Bool[Tensor, "B T"]
        values: Float32[Tensor, "B T"]

    @node()
    def tear(group_ids: Int64[Tensor, " B"], answers: Objects[str]) -> Torn:
        return Torn(torch.ones(len(group_ids), 3, dtype=torch.bool), torch.ones(len(group_ids), 4))

    @node()
    def end(values: Float32[Tensor, "B T"]) -> Metrics:
        return Metrics()

    with Pipeline("p") as pipeline:
        end(tear(prompts(data="zoo:larger", batch_size=2)))
    with pytest.raises(NodeError, match="`tear` returned `values` 4 wide in T, another column 3"):
        run(pipeline)
