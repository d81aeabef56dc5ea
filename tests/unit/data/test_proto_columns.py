"""Building a DataProto and choosing, renaming and joining its columns."""

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from dagrl.data import DataProto
from dagrl.data.proto import union_numpy_dict, union_tensor_dict
from dagrl.errors import DagrlError, DataError, MissingColumnError

NAN = float("nan")


def make():
    return DataProto.from_dict(
        {"a": torch.tensor([1.0, NAN]), "b": torch.tensor([[1, 2], [3, 4]])},
        {"o": [{"x": NAN}, None], "p": [[1, 2], [3, 4]]},
        {"name": "x", "nan": NAN, "deep": {"l": [1]}},
    )


def columns(data):
    tensors = [] if data.batch is None else sorted(data.batch.keys())
    return tensors, sorted(data.non_tensor_batch), sorted(data.meta_info)


# ---- building


def test_from_dict():
    data = make()
    assert len(data) == 2
    assert columns(data) == (["a", "b"], ["o", "p"], ["deep", "name", "nan"])
    assert data.non_tensor_batch["p"].shape == (2,)
    assert data.non_tensor_batch["p"][1] == [3, 4]


def test_from_single_dict():
    data = DataProto.from_single_dict(
        {"a": torch.ones(2), "n": np.array([1, 2]), "l": [[1], [2]], "w": np.ones((2, 3))}, meta_info={"m": 1}
    )
    assert columns(data) == (["a"], ["l", "n", "w"], ["m"])
    assert all(value.shape == (2,) and value.dtype == object for value in data.non_tensor_batch.values())


def test_nothing_at_all():
    for data in (DataProto(), DataProto.from_dict(), DataProto.from_dict({}, {}, {})):
        assert len(data) == 0
        assert data.batch is None
        assert data == DataProto()


def test_arguments_are_left_alone():
    objects, meta = {"o": [1, 2]}, {"m": 1}
    batch = TensorDict({"a": torch.ones(2)}, batch_size=[2])
    data = DataProto(batch, objects, meta)
    data.pop(["a"], ["o"], ["m"])
    data.rename([], [])
    assert (objects, meta, list(batch.keys())) == ({"o": [1, 2]}, {"m": 1}, ["a"])
    data = DataProto(batch, objects, meta)
    data.rename(["a", "o"], ["b", "q"])
    data.reorder([1, 0])
    data.meta_info["n"] = 2
    assert (objects, meta, list(batch.keys())) == ({"o": [1, 2]}, {"m": 1}, ["a"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DataProto.from_dict({"a": torch.ones(2), "b": torch.ones(3)}), "`b` has batch dims (3,), column `a`"),
        (lambda: DataProto.from_dict({"a": torch.ones(2)}, {"o": [1]}), "`o` has 1 rows, the batch has 2"),
        (lambda: DataProto(None, {"o": [1], "p": [1, 2]}), "`p` has 2 rows, the batch has 1"),
        (lambda: DataProto.from_dict({"a": torch.tensor(1.0)}), "`a` of shape () lacks 1 batch dims"),
        (lambda: DataProto.from_dict({"a": torch.ones(2)}, num_batch_dims=0), "`num_batch_dims` is 0"),
        (lambda: DataProto.from_dict({"a": [1, 2]}), "`a` is a list, not a tensor"),
        (lambda: DataProto.from_dict({"a": torch.ones(1)}, {"o": "x"}), "`o` is a str"),
        (lambda: DataProto.from_single_dict({"s": 3}), "`s` is a int"),
        (lambda: DataProto.from_single_dict({"s": np.array(3)}), "`s` is a 0-dim array"),
        (lambda: DataProto.from_dict({"a": torch.ones(1)}, {"a": [1]}), "`a` is both a tensor and an object column"),
        (lambda: DataProto(TensorDict({"a": torch.ones(1)}, batch_size=[])), "at least one batch dim"),
        (lambda: DataProto(TensorDict({"a": NonTensorData(1)}, batch_size=[2])), "`a` of the batch is a NonTensorData"),
    ],
)
def test_what_is_refused_names_the_column(build, message):
    with pytest.raises(DataError) as failure:
        build()
    assert message in str(failure.value)
    assert isinstance(failure.value, DagrlError)
    assert isinstance(failure.value, ValueError)


def test_check_consistency_sees_later_edits():
    data = make()
    data.check_consistency()
    data.non_tensor_batch["o"] = [1, 2]
    with pytest.raises(TypeError, match="`o` is a list, not an array"):
        data.check_consistency()


# ---- equality


def test_equal_batches():
    assert make() == make()
    assert make() != "batch"


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.batch.set("a", torch.tensor([2.0, NAN])),
        lambda data: data.batch.set("b", data.batch["b"].int()),
        lambda data: data.batch.set("c", data.batch["b"]),
        lambda data: data.non_tensor_batch.update(o=np.array([{"x": 1.0}, None], dtype=object)),
        lambda data: data.non_tensor_batch.pop("p"),
        lambda data: data.meta_info.update(name="y"),
        lambda data: data.meta_info.pop("nan"),
    ],
)
def test_unequal_batches(edit):
    data = make()
    edit(data)
    assert data != make()


def test_rows_count_without_columns():
    assert DataProto(TensorDict({}, batch_size=[4])) != DataProto(TensorDict({}, batch_size=[3]))


# ---- TensorDict


def test_tensordict_round_trip():
    data = make()
    data.non_tensor_batch["arrays"] = np.array([np.ones(2), np.ones(3)], dtype=object)
    data.meta_info |= {"tensor": torch.ones(2, 3), "none": None, "list": [1, 2]}
    whole = data.to_tensordict()
    assert whole.batch_size == (2,)
    assert DataProto.from_tensordict(whole) == data
    assert DataProto.from_tensordict(data[0:0].to_tensordict()) == data[0:0]
    assert columns(data)[0] == ["a", "b"]


@pytest.mark.parametrize(
    "data",
    [
        DataProto(),
        DataProto(None, {"o": [None, [1], {}]}),
        DataProto(None, {"o": ["same", "same"]}),
        DataProto(TensorDict({}, batch_size=[4])),
        DataProto.from_dict({"x": torch.ones(2, 3, 1)}, num_batch_dims=2),
    ],
)
def test_round_trip_of_odd_batches(data):
    dims = 1 if data.batch is None else len(data.batch.batch_size)
    again = DataProto.from_tensordict(data.to_tensordict(), num_batch_dims=dims)
    assert again == data
    assert len(again) == len(data)


def test_from_tensordict_adds_meta_info():
    whole = make().to_tensordict()
    assert DataProto.from_tensordict(whole, {"more": 1}).meta_info["more"] == 1
    with pytest.raises(DataError, match="`name`"):
        DataProto.from_tensordict(whole, {"name": "y"})


def test_from_tensordict_infers_missing_batch_dims():
    data = DataProto.from_tensordict(TensorDict({"a": torch.ones(3, 2)}, batch_size=[]))
    assert len(data) == 3


def test_tensordict_errors_name_the_column():
    with pytest.raises(TypeError, match="`inner` is a TensorDict"):
        DataProto.from_tensordict(TensorDict({"inner": TensorDict({}, batch_size=[2])}, batch_size=[2]))
    with pytest.raises(ValueError, match="meta_info key `a` is also a column"):
        DataProto.from_dict({"a": torch.ones(1)}, meta_info={"a": 1}).to_tensordict()


# ---- select, pop, rename


def test_select():
    data = make()
    assert data.select() == data
    assert columns(data.select(["a"])) == (["a"], ["o", "p"], ["deep", "name", "nan"])
    assert columns(data.select(["b"], ["p"], ["name"])) == (["b"], ["p"], ["name"])
    nothing = data.select([], [], [])
    assert columns(nothing) == ([], [], [])
    assert len(nothing) == 2
    assert data == make()


def test_select_keeps_the_dicts_apart():
    data = make()
    selected = data.select()
    selected.batch["new"] = torch.ones(2)
    selected.non_tensor_batch["new"] = np.array([1, 2], dtype=object)
    selected.meta_info["new"] = 1
    assert data == make()


def test_deep_selection_shares_nothing():
    data = make()
    selected = data.select(deepcopy=True)
    assert selected == data
    selected.batch["a"].zero_()
    selected.non_tensor_batch["o"][0]["x"] = 1.0
    selected.non_tensor_batch["p"][1].append(5)
    selected.meta_info["deep"]["l"].append(2)
    assert data == make()


def test_deep_selection_without_tensors():
    assert DataProto(None, {"o": [1]}).select(deepcopy=True).batch is None


def test_pop():
    data = make()
    popped = data.pop(["a"], ["o"], ["name"])
    assert columns(popped) == (["a"], ["o"], ["name"])
    assert columns(data) == (["b"], ["p"], ["deep", "nan"])
    assert popped.batch["a"][0] == 1.0
    assert data.union(popped) == make()


def test_pop_nothing_and_everything():
    data = make()
    assert columns(data.pop()) == ([], [], [])
    assert data == make()
    assert data.union(data.pop()) == make()
    data.pop(["a", "b"], ["o", "p"])
    assert len(data) == 2
    assert columns(data)[:2] == ([], [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "zz"],), "no tensor column `zz`; there are `a`, `b`"),
        ((["o"],), "no tensor column `o`"),
        ((["a"], ["zz"]), "no object column `zz`; there are `o`, `p`"),
        ((["a"], ["o"], ["zz"]), "no meta_info key `zz`; there are `name`, `nan`, `deep`"),
    ],
)
def test_missing_names(arguments, message):
    data = make()
    for method in (data.select, data.pop):
        with pytest.raises(MissingColumnError) as failure:
            method(*arguments)
        assert message in str(failure.value)
        assert isinstance(failure.value, KeyError)
    assert data == make()


def test_missing_names_in_an_empty_batch():
    with pytest.raises(KeyError, match="no tensor column `a`; there are none"):
        DataProto().select(["a"])


def test_rename():
    data = make()
    assert data.rename("a", "c") is data
    assert data.rename(["b", "o"], ["a", "q"]) is data
    assert columns(data) == (["a", "c"], ["p", "q"], ["deep", "name", "nan"])
    assert torch.equal(data.batch["a"], make().batch["b"])
    assert data.non_tensor_batch["q"][1] is None
    data.rename(["a", "c"], ["c", "a"])
    assert torch.equal(data.batch["c"], make().batch["b"])
    assert data.rename() is data
    assert DataProto(None, {"o": [1]}).rename("o", "p").non_tensor_batch["p"].tolist() == [1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (["a"], ["b"], "two columns would be named `b`"),
        (["a"], ["o"], "two columns would be named `o`"),
        (["a", "b"], ["c", "c"], "two columns would be named `c`"),
        (["a"], ["c", "d"], "1 old keys but 2 new ones"),
        (["zz"], ["c"], "no column `zz`"),
    ],
)
def test_rename_refuses(old, new, message):
    data = make()
    with pytest.raises(DataError, match=message):
        data.rename(old, new)
    assert data == make()


# ---- union


def test_union_of_new_columns():
    left, right = make().select(["a"], ["o"], ["name"]), make().select(["b"], ["p"], ["nan", "deep"])
    joined = left.union(right)
    assert joined == make()
    assert columns(left) == (["a"], ["o"], ["name"])
    assert columns(right) == (["b"], ["p"], ["deep", "nan"])


def test_union_of_equal_columns():
    assert make().union(make()) == make()


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (DataProto.from_dict({"a": torch.tensor([1.0, 2.0])}), "column `a`"),
        (DataProto.from_dict({"a": torch.tensor([1.0, NAN]).double()}), "column `a`"),
        (DataProto.from_dict(None, {"o": [{"x": 1.0}, None]}), "column `o`"),
        (DataProto(None, {"p": [[1, 2], [3, 5]]}), "column `p`"),
        (DataProto(meta_info={"name": "y"}), "meta_info key `name` has two values: 'x' and 'y'"),
        (DataProto(meta_info={"nan": 1.0}), "meta_info key `nan`"),
        (DataProto(meta_info={"deep": {"l": [2]}}), "meta_info key `deep`"),
        (DataProto(None, {"a": [1, 2]}), "column `a` is both"),
        (DataProto.from_dict({"c": torch.ones(3)}), "one side has 2 rows, the other 3"),
        (DataProto(None, {"c": [1]}), "one side has 2 rows, the other 1"),
    ],
)
def test_union_clash_names_the_key(other, name):
    data = make()
    with pytest.raises(ValueError) as failure:
        data.union(other)
    assert name in str(failure.value)
    assert data == make()


def test_union_with_what_has_no_columns():
    data = make()
    assert data.union(DataProto(meta_info={"more": 1})).meta_info["more"] == 1
    assert DataProto(meta_info={"more": 1}).union(data).batch.keys() == data.batch.keys()
    assert len(DataProto(None, {"c": [1, 2]}).union(data)) == 2


def test_union_helpers_change_neither_side():
    left, right = TensorDict({"a": torch.ones(2)}, batch_size=[2]), TensorDict({"b": torch.ones(2)}, batch_size=[2])
    assert sorted(union_tensor_dict(left, right).keys()) == ["a", "b"]
    assert (list(left.keys()), list(right.keys())) == (["a"], ["b"])
    with pytest.raises(DataError, match="batch sizes"):
        union_tensor_dict(left, TensorDict({}, batch_size=[3]))
    one, two = {"o": np.array([1], dtype=object)}, {"p": np.array([2], dtype=object)}
    assert sorted(union_numpy_dict(one, two)) == ["o", "p"]
    assert (list(one), list(two)) == (["o"], ["p"])


# ---- the rest


def test_to_returns_the_batch_itself():
    data = make()
    before = data.batch
    assert data.to("meta") is data
    assert data.batch["a"].device.type == "meta"
    assert before["a"].device.type == "cpu"
    assert DataProto(None, {"o": [1]}).to("cpu").batch is None


def test_data_info_names_everything():
    info = make().get_data_info()
    assert info.splitlines() == [
        "batch",
        "  a: (2,) (torch.float32) on cpu",
        "  b: (2, 2) (torch.int64) on cpu",
        "non_tensor_batch",
        "  o: ndarray(2,) (object)",
        "  p: ndarray(2,) (object)",
        "meta_info",
        "  name: str",
        "  nan: float",
        "  deep: dict",
    ]


def test_print_size(capsys):
    make().print_size("rollout")
    DataProto().print_size()
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"rollout, Size of tensordict: {40 / 1024**3} GB, number of objects in non_tensor_batch: 4"
    assert second == "Size of tensordict: 0.0 GB, number of objects in non_tensor_batch: 0"
