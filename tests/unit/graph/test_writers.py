"""The table of who writes what is that of the built-in nodes, and the compiler's hint does not depend on imports."""

import subprocess
import sys
from collections import defaultdict

from dagrl import nodes
from dagrl.graph.node import Node
from dagrl.graph.writers import BUILT_IN_WRITERS


def test_the_table_is_what_the_built_in_nodes_declare() -> None:
    declared: dict[str, set[str]] = defaultdict(set)
    contracts = [value.contract for value in vars(nodes).values() if isinstance(value, Node)]
    for contract in contracts:
        read = {read.name for read in contract.reads if not read.optional}
        for write in contract.writes:
            if write.name not in read:
                declared[write.name].add(contract.name)
    assert {column: set(names) for column, names in BUILT_IN_WRITERS.items()} == declared
    assert all(list(names) == sorted(names) for names in BUILT_IN_WRITERS.values())


HINT = """
{imports}
from jaxtyping import Float32, Int64
from torch import Tensor
from dagrl import Metrics, Objects, Pipeline, node
from dagrl.compiler import compile_pipelines
from dagrl.errors import CompileError

@node(rows="source", writes="messages")
def source(positions: Int64[Tensor, " B"], *, data: str = "", split: str = "", batch_size: int = 1, n: int = 1
) -> Objects[str]: ...

@node()
def end(rewards: Float32[Tensor, " B"]) -> Metrics: ...

with Pipeline("p") as p:
    end(source())
try:
    compile_pipelines([p])
except CompileError as error:
    print(error.problems[0].fix)
"""


def test_the_hint_does_not_depend_on_what_was_imported() -> None:
    hints: set[str] = set()
    for imports in ("", "import dagrl.nodes", "from dagrl.nodes.shaping import length_penalty"):
        program = [sys.executable, "-c", HINT.replace("{imports}", imports)]
        hints.add(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
    (hint,) = hints
    writers = "`format_reward`, `gym_score`, `math_verify`, `reward_function`, `reward_model_score` or `verify`"
    assert hint == f"`rewards` is written by {writers}: call it and pass its output to `end`\n"
