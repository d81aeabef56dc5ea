"""`concat` loses nothing, merges metrics, and names the column, key and part that do not fit."""

import copy
from math import isnan

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from dagrl.data import DataProto
from dagrl.data.metrics import Max, Mean, Metrics, Sum
from dagrl.errors import DataError

NAN = float("nan")


def meta(*parts):
    return DataProto.concat([DataProto(meta_info=part) for part in parts]).meta_info


def tensors(**columns):
    return DataProto.from_dict(columns)


def test_rows_in_order_of_the_parts():
    first = DataProto.from_dict({"a": torch.tensor([1, 2])}, {"o": [[1], {"x": 2}]})
    second = DataProto.from_dict({"a": torch.tensor([3])}, {"o": [None]})
    whole = DataProto.concat([first, second])
    assert whole.batch["a"].tolist() == [1, 2, 3]
    assert whole.non_tensor_batch["o"].tolist() == [[1], {"x": 2}, None]
    assert DataProto.concat([second, first]).batch["a"].tolist() == [3, 1, 2]
    assert len(first) == 2
    assert len(second) == 1


def test_the_order_of_columns_does_not_matter():
    first = DataProto.from_dict({"a": torch.ones(1), "b": torch.zeros(1)}, {"o": [1], "p": [2]})
    second = DataProto.from_dict({"b": torch.zeros(1), "a": torch.ones(1)}, {"p": [2], "o": [1]})
    assert DataProto.concat([first, second]) == DataProto.concat([first, first])


def test_concat_of_one_part_is_a_new_equal_batch():
    data = DataProto.from_dict({"a": torch.ones(2)}, {"o": [1, 2]}, {"m": 1, "metrics": {"loss": 1.0}})
    again = DataProto.concat([data])
    assert again == data
    assert again is not data


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "there are no parts"),
        ([tensors(a=torch.ones(1)), tensors(b=torch.ones(1))], "column `a` is missing in part 1; part 0 has it"),
        (
            [tensors(a=torch.ones(1)), tensors(a=torch.ones(1), b=torch.ones(1))],
            "column `b` is missing in part 0; part 1 has it",
        ),
        ([DataProto(None, {"o": [1], "p": [1]}), DataProto(None, {"o": [1]})], "column `p` is missing in part 1"),
        ([tensors(a=torch.ones(1)), DataProto()], "column `a` is missing in part 1"),
        ([DataProto(), tensors(a=torch.ones(0))], "column `a` is missing in part 0"),
        (
            [tensors(a=torch.ones(1)), DataProto(None, {"a": [1.0]})],
            "column `a` is a tensor column in part 0 and an object column in part 1",
        ),
        (
            [tensors(a=torch.ones(1).long()), tensors(a=torch.ones(1).long()), tensors(a=torch.ones(1))],
            "column `a` has dtype torch.int64 in part 0 and torch.float32 in part 2",
        ),
        (
            [tensors(b=torch.ones(1), a=torch.ones(1, 3)), tensors(b=torch.ones(1), a=torch.ones(1, 4))],
            "column `a` has width (3,) in part 0 and (4,) in part 1",
        ),
        (
            [tensors(a=torch.ones(1)), tensors(a=torch.ones(1, 1))],
            "column `a` has width () in part 0 and (1,) in part 1",
        ),
        ([tensors(a=torch.ones(0).half()), tensors(a=torch.ones(1))], "column `a` has dtype torch.float16 in part 0"),
        (
            [tensors(a=torch.ones(1)), tensors(a=torch.ones(1, device="meta"))],
            "column `a` has device cpu in part 0 and meta in part 1",
        ),
        (
            [DataProto(TensorDict({}, batch_size=[2, 3])), DataProto(TensorDict({}, batch_size=[2]))],
            "the batch sizes differ: [[2, 3], [2]]",
        ),
    ],
)
def test_parts_that_do_not_fit(parts, message):
    with pytest.raises(ValueError) as failure:
        DataProto.concat(parts)
    assert message in str(failure.value)


def test_no_columns():
    whole = DataProto.concat([DataProto(TensorDict({}, batch_size=[4])), DataProto(TensorDict({}, batch_size=[3]))])
    assert len(whole) == 7
    mixed = DataProto.concat([DataProto(None, {"o": [1]}), DataProto(TensorDict({}, batch_size=[1]), {"o": [2]})])
    assert len(mixed) == 2


def test_parts_are_checked():
    part = tensors(a=torch.ones(2))
    part.non_tensor_batch["o"] = np.array([1], dtype=object)
    with pytest.raises(DataError, match="object column `o` has 1 rows"):
        DataProto.concat([part, part])


# ---- meta_info


def test_nothing_of_meta_info_is_lost():
    merged = meta({"a": 1, "metrics": {"loss": 1.0}}, {"b": 2, "metrics": {"loss": 3.0, "kl": 0.5}})
    assert merged == {"a": 1, "b": 2, "metrics": {"loss": [1.0, 3.0], "kl": [0.5]}}


@pytest.mark.parametrize(
    "value", [1, "x", None, NAN, np.float32(NAN), [NAN, {"a": NAN}], torch.tensor([NAN, 1.0]), np.array([1.0, NAN])]
)
def test_equal_values_are_kept_once(value):
    merged = meta({"k": value}, {"k": copy.deepcopy(value)}, {})
    assert merged["k"] is value


def test_rounding_is_no_conflict():
    first, second = 73.94637298583984, 73.94638061523438
    assert meta({"t": first}, {"t": second})["t"] == first
    assert meta({"timing": {"t": first}}, {"timing": {"t": second}}) == {"timing": {"t": first}}


def test_nan_is_never_hidden_and_no_crash():
    assert isnan(meta({"t": 1.0}, {"t": NAN})["t"])
    assert isnan(meta({"t": NAN}, {"t": 1.0}, {"t": 1.0})["t"])
    assert isnan(meta({"t": 1.0}, {"t": np.float32(NAN)}, {"t": 1.0})["t"])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1.0, 0.5),
        (1, 2),
        ("a", "b"),
        (None, 0),
        (NAN, "a"),
        ([1.0], [2.0]),
        (True, False),
        (torch.ones(2), torch.ones(3)),
    ],
)
def test_a_real_conflict_names_the_key(first, second):
    with pytest.raises(ValueError, match=r"meta_info key `temperature` is .* in part 1 and .* in part 2"):
        meta({}, {"temperature": first}, {"temperature": second})


def test_meta_info_of_the_parts_is_left_alone():
    left, right = {"metrics": {"loss": [1.0]}}, {"metrics": {"loss": [2.0]}}
    assert meta(left, right) == {"metrics": {"loss": [1.0, 2.0]}}
    assert left == {"metrics": {"loss": [1.0]}}
    assert right == {"metrics": {"loss": [2.0]}}


# ---- metrics


def test_equal_metrics_of_two_parts_are_two_values():
    assert meta({"metrics": {"loss": 1.0}}, {"metrics": {"loss": 1.0}}) == {"metrics": {"loss": [1.0, 1.0]}}


def test_metrics_in_one_part_of_several():
    assert meta({"metrics": {"loss": 1.0}}, {}) == {"metrics": {"loss": [1.0]}}
    assert meta({}, {"metrics": {"loss": 1.0}}) == {"metrics": {"loss": [1.0]}}


def test_metrics_recorded_before_a_batch_was_cut_count_once():
    data = DataProto.from_dict({"a": torch.ones(4)}, meta_info={"metrics": {"loss": 1.0, "rows": Sum(4.0)}})
    assert DataProto.concat(data.chunk(4)).meta_info == {"metrics": {"loss": 1.0, "rows": Sum(4.0)}}


def test_lists_are_joined():
    merged = meta(
        {"metrics": {"loss": [1.0, 2.0]}}, {"metrics": {"loss": 3.0}}, {"metrics": [{"loss": 4.0}, {"kl": NAN}]}
    )
    assert merged["metrics"]["loss"] == [1.0, 2.0, 3.0, 4.0]
    assert isnan(merged["metrics"]["kl"][0])


def test_declared_metrics_merge_exactly():
    first = {"metrics": {"loss": Mean(6.0, 2), "top": Max(1.0)}}
    second = {"metrics": {"loss": Mean(1.0, 1), "rows": Sum(3.0)}}
    assert meta(first, second)["metrics"] == {"loss": Mean(7.0, 3), "top": Max(1.0), "rows": Sum(3.0)}
    wrapped = meta({"metrics": Metrics(first["metrics"])}, {"metrics": Metrics(second["metrics"])})["metrics"]
    assert isinstance(wrapped, Metrics)
    assert dict(wrapped) == {"loss": Mean(7.0, 3), "top": Max(1.0), "rows": Sum(3.0)}


@pytest.mark.parametrize("wrap", [dict, Metrics])
def test_metrics_of_two_kinds_clash(wrap):
    with pytest.raises(DataError, match="metric `loss` is a Mean in one part and a Max in another"):
        meta({"metrics": wrap({"loss": Mean(1.0, 1)})}, {"metrics": wrap({"loss": Max(1.0)})})


def test_a_number_is_no_mean():
    with pytest.raises(DataError, match=r"metric `loss` is 1.0: give a Mean, Max, Min or Sum"):
        meta({"metrics": {"loss": 1.0}}, {"metrics": {"loss": Mean(1.0, 1)}})


def test_metrics_that_are_no_mapping():
    with pytest.raises(TypeError, match="meta_info key `metrics` holds a float"):
        meta({"metrics": 1.0}, {"metrics": {"loss": 1.0}})
