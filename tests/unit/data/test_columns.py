"""The legend agrees with itself, and reading it loads neither torch nor tensordict."""

import subprocess
import sys

import pytest
import torch

from dagrl.data.columns import (
    CARRIED,
    DIMS,
    DTYPES,
    ENGINE_OUTPUTS,
    LEGEND,
    PAD_SIDES,
    Column,
    ColumnType,
    pad_value,
    refusal,
)


@pytest.mark.parametrize("column", LEGEND.values(), ids=lambda column: column.name)
def test_entry(column):
    assert column.type.dims[0] == "B"
    assert set(column.type.dims) <= set(DIMS)
    assert column.type.is_object or column.type.dtype in DTYPES
    assert column.meaning
    assert column.meaning[0] != " "
    assert refusal(column.name) is None
    assert LEGEND[column.name] is column


@pytest.mark.parametrize("column", LEGEND.values(), ids=lambda column: column.name)
def test_padding_fits_the_dtype(column):
    kinds = {"bool": bool, "f32": float, "i64": int, "object": int}
    assert type(column.pad) is kinds[column.type.dtype]
    assert pad_value(column.name, column.type.dtype) == column.pad


def test_metrics_are_of_row_columns_and_unique():
    kept = [column for column in LEGEND.values() if column.metric]
    assert all(column.type.dims == ("B",) and not column.type.is_object for column in kept)
    assert len({column.metric for column in kept}) == len(kept) > 0


def test_padded_dims_are_the_widths():
    assert set(PAD_SIDES) == {"P", "T", "S"}
    assert (PAD_SIDES["P"], PAD_SIDES["T"], PAD_SIDES["S"]) == ("left", "right", "both")


def test_dtypes_are_torch_names():
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES.values())
    assert len(set(DTYPES.values())) == len(DTYPES)


def test_printed_type():
    assert str(LEGEND["old_logprobs"].type) == "f32[B T]"
    assert str(LEGEND["messages"].type) == "object[B]"
    assert str(ColumnType("f32", ())) == "f32[]"


def test_unknown_columns_pad_with_nothing():
    assert pad_value("my_column", "bool") is False
    assert pad_value("my_column", "f32") == 0


@pytest.mark.parametrize(
    "name", [*sorted(CARRIED), *sorted(ENGINE_OUTPUTS), "new_thing", "count", "index", "two words", "3d", ""]
)
def test_refused_names(name):
    assert refusal(name)


def test_the_legend_is_frozen():
    with pytest.raises(TypeError):
        LEGEND["x"] = Column("x", ColumnType("f32", ("B",)), "x")  # pyright: ignore


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["dagrl.data", "dagrl.data.columns", "dagrl.data.metrics"])
def test_import_is_light(module):
    code = f"import {module}, sys; sys.exit(bool({{'torch', 'tensordict'}} & set(sys.modules)))"
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_joins_need_no_tensordict():
    done = run_python("import dagrl.data.join, sys; sys.exit('tensordict' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_dataproto_is_there_on_first_use():
    import dagrl.data
    from dagrl.data.proto import DataProto, DataProtoItem

    assert dagrl.data.DataProto is DataProto
    assert dagrl.data.DataProtoItem is DataProtoItem
    assert {"DataProto", "DataProtoItem"} <= set(dir(dagrl.data))
    with pytest.raises(AttributeError, match="no attribute `DataProtoo`"):
        dagrl.data.DataProtoo  # pyright: ignore
