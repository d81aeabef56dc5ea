"""The names of ``verl.protocol`` are in `dagrl.data`, with the same parameters, order and defaults."""

import inspect
from dataclasses import MISSING, fields

import pytest

import dagrl.data
from dagrl.data import DataProto, DataProtoItem

REQUIRED = inspect.Parameter.empty

METHODS = {
    "__getitem__": {"item": REQUIRED},
    "__len__": {},
    "check_consistency": {},
    "chunk": {"chunks": REQUIRED},
    "concat": {"data": REQUIRED},
    "from_dict": {"tensors": None, "non_tensors": None, "meta_info": None, "num_batch_dims": 1, "auto_padding": False},
    "from_single_dict": {"data": REQUIRED, "meta_info": None, "auto_padding": False},
    "from_tensordict": {"tensor_dict": None, "meta_info": None, "num_batch_dims": 1},
    "get_data_info": {},
    "is_padding_enabled": {},
    "load_from_disk": {"filepath": REQUIRED},
    "make_iterator": {"mini_batch_size": REQUIRED, "epochs": REQUIRED, "seed": None, "dataloader_kwargs": None},
    "padding": {"padding_size": REQUIRED, "padding_candidate": ""},
    "pop": {"batch_keys": None, "non_tensor_batch_keys": None, "meta_info_keys": None},
    "print_size": {"prefix": ""},
    "rename": {"old_keys": None, "new_keys": None},
    "reorder": {"indices": REQUIRED},
    "repeat": {"repeat_times": 2, "interleave": True},
    "sample_level_repeat": {"repeat_times": REQUIRED},
    "save_to_disk": {"filepath": REQUIRED},
    "select": {"batch_keys": None, "non_tensor_batch_keys": None, "meta_info_keys": None, "deepcopy": False},
    "select_idxs": {"idxs": REQUIRED},
    "slice": {"start": None, "end": None, "step": None},
    "split": {"split_size": REQUIRED},
    "to": {"device": REQUIRED},
    "to_tensordict": {},
    "unfold_column_chunks": {"n_split": REQUIRED, "split_keys": None},
    "union": {"other": REQUIRED},
}
KINDS = {
    "concat": staticmethod,
    "load_from_disk": staticmethod,
    "from_dict": classmethod,
    "from_single_dict": classmethod,
    "from_tensordict": classmethod,
}
FUNCTIONS = {
    "pad_dataproto_to_divisor": {"data": REQUIRED, "size_divisor": REQUIRED},
    "unpad_dataproto": {"data": REQUIRED, "pad_size": REQUIRED},
    "union_tensor_dict": {"tensor_dict1": REQUIRED, "tensor_dict2": REQUIRED},
    "union_numpy_dict": {"tensor_dict1": REQUIRED, "tensor_dict2": REQUIRED},
    "fold_batch_dim": {"data": REQUIRED, "new_batch_size": REQUIRED},
    "unfold_batch_dim": {"data": REQUIRED, "batch_dims": 2},
    "serialize_single_tensor": {"obj": REQUIRED},
    "deserialize_single_tensor": {"arr": REQUIRED},
    "serialize_tensordict": {"batch": REQUIRED},
    "deserialize_tensordict": {"arr": REQUIRED},
    "all_gather_data_proto": {"data": REQUIRED, "process_group": REQUIRED},
}


def parameters(function):
    """The parameters that can be given by place, with their defaults; further ones by name need a default."""
    found = list(inspect.signature(function).parameters.values())
    extra = [each for each in found if each.kind is inspect.Parameter.KEYWORD_ONLY]
    assert all(each.default is not REQUIRED for each in extra)
    return [(each.name, each.default) for each in found if each not in extra and each.name != "self"]


@pytest.mark.parametrize("name", METHODS)
def test_methods(name):
    assert parameters(getattr(DataProto, name)) == list(METHODS[name].items())
    defined = inspect.getattr_static(DataProto, name)
    assert isinstance(defined, KINDS.get(name, type(test_methods)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    assert parameters(getattr(dagrl.data, name)) == list(FUNCTIONS[name].items())
    assert name in dagrl.data.__all__


@pytest.mark.parametrize("kind", [DataProto, DataProtoItem])
def test_classes(kind):
    assert [each.name for each in fields(kind)] == ["batch", "non_tensor_batch", "meta_info"]
    assert fields(kind)[0].default is None
    assert all(each.default_factory is dict for each in fields(kind)[1:])
    assert all(each.default is MISSING for each in fields(kind)[1:])
    assert parameters(kind)[0] == ("batch", None)
