"""A batch between processes: every column survives, nothing is sent twice, what arrives is the receiver's own."""

import copy
import mmap
import os
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pytest
import torch
from batches import DTYPES, OBJECTS, random_tensor
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from dagrl.data import DataProto
from dagrl.data.metrics import Max, Mean, Metrics, Sum
from dagrl.data.wire import WIRE_VERSION, OutgoingBatch, receive
from dagrl.errors import DataError, DataTypeError


def in_band(data):
    return pickle.loads(pickle.dumps(data, protocol=5))


def older_protocol(data):
    return pickle.loads(pickle.dumps(data, protocol=2))


def by_cloudpickle(data):
    return pickle.loads(cloudpickle.dumps(data))


def out_of_band(data, place=bytes):
    """Through buffers that ``place`` put somewhere: read-only by default, as Ray's shared memory is."""
    buffers = []
    head = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(head, buffers=[place(buffer.raw()) for buffer in buffers])


def misplaced(buffer):
    """A writable copy at an odd address."""
    return memoryview(bytearray(b"x" + bytes(buffer)))[1:]


WAYS = {
    "pickle": in_band,
    "protocol 2": older_protocol,
    "cloudpickle": by_cloudpickle,
    "out of band, read-only": out_of_band,
    "out of band, odd address": lambda data: out_of_band(data, misplaced),
}


LAYOUTS = {
    "contiguous": lambda tensor: tensor,
    "rows of more": lambda tensor: torch.cat([tensor[:1], tensor, tensor[:1]])[min(1, len(tensor)) :][: len(tensor)],
    "every other column": lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2],
    "transposed": lambda tensor: tensor.transpose(0, -1).contiguous().transpose(0, -1),
    "expanded": lambda tensor: tensor[..., :1].expand(*tensor.shape),
}


def raw(tensor):
    """The tensor's bytes, which tell NaNs apart and compare for every dtype."""
    return tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format).untyped_storage().tolist()


def same(sent, received):
    """Checks every column for equal dtype, shape and bytes, and that the receiver can write to it."""
    assert list(received.batch.keys()) == list(sent.batch.keys())
    assert received.batch.batch_size == sent.batch.batch_size
    for name, tensor in sent.batch.items():
        arrived = received.batch[name]
        assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
        assert raw(arrived) == raw(tensor)
        assert arrived.data_ptr() % min(arrived.dtype.itemsize, 8) == 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            arrived.detach().zero_()


# ---- what survives


@given(st.sampled_from(DTYPES), st.sampled_from(list(LAYOUTS)), st.integers(0, 17), st.integers(1, 5), st.data())
def test_every_dtype_layout_and_length_survives(dtype, layout, rows, width, data):
    try:
        tensor = LAYOUTS[layout](random_tensor(dtype, (rows, width)))
    except RuntimeError as unsupported:  # torch lacks the operation for the dtype
        assert "not implemented" in str(unsupported)  # noqa: PT017
        tensor = random_tensor(dtype, (rows, width))
    objects = data.draw(st.lists(OBJECTS, min_size=rows, max_size=rows))
    sent = DataProto.from_dict({"x": tensor, "y": tensor[:, 0]}, {"o": objects}, {"step": 1})
    received = WAYS[data.draw(st.sampled_from(list(WAYS)))](sent)
    assert received.non_tensor_batch["o"].dtype == object
    assert DataProto(None, received.non_tensor_batch) == DataProto(None, sent.non_tensor_batch)
    assert received.meta_info == {"step": 1}
    same(sent, received)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(2,), (0,), (0, 3), (3, 0), (2, 3, 4)])
def test_shapes_with_and_without_elements_survive(way, shape):
    sent = DataProto.from_dict({"x": random_tensor(torch.bfloat16, shape)})
    same(sent, WAYS[way](sent))


@pytest.mark.parametrize("rows", [0, 1])
def test_a_few_rows_of_any_stride_survive(rows):
    wide = random_tensor(torch.int16, (rows, 3))
    sent = DataProto.from_dict({"column": wide[:, 1], "narrow": wide[:, 1:2], "turned": wide.T.contiguous().T})
    same(sent, in_band(sent))


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_without_dims_survives(way):
    received = WAYS[way](OutgoingBatch(TensorDict({"x": torch.tensor(2.5)}, batch_size=[])))
    assert received.batch_size == received["x"].shape == ()
    assert received["x"].item() == 2.5


def test_conjugate_and_negated_views_arrive_as_values():
    number = torch.tensor([1 + 2j, 3 - 4j])
    sent = DataProto.from_dict({"conjugate": number.conj(), "negative": number.conj().imag})
    received = in_band(sent)
    assert received.batch["conjugate"].tolist() == [1 - 2j, 3 + 4j]
    assert received.batch["negative"].tolist() == [-2, 4]
    one = number[:1].conj().imag
    assert one.is_neg()
    assert one.is_contiguous()
    assert in_band(DataProto.from_dict({"one": one})).batch["one"].tolist() == [-2]


def test_batches_without_tensors_survive():
    for way in WAYS.values():
        assert way(DataProto()) == DataProto()
        assert way(DataProto()).batch is None
        words = way(DataProto.from_dict(non_tensors={"word": ["a", None, {"b": [b"c"]}]}))
        assert words.batch is None
        assert words.non_tensor_batch["word"].tolist() == ["a", None, {"b": [b"c"]}]
        empty = way(DataProto(TensorDict({}, batch_size=[5])))
        assert (len(empty), list(empty.batch.keys())) == (5, [])


def test_several_batch_dims_and_the_device_of_a_tensordict_survive():
    sent = DataProto(TensorDict({"x": torch.zeros(3, 2, 4)}, batch_size=[3, 2], device="cpu"))
    received = in_band(sent)
    assert received.batch.batch_size == (3, 2)
    assert received.batch.device == torch.device("cpu")
    assert in_band(DataProto.from_dict({"x": torch.zeros(3)})).batch.device is None


def test_gradients_stay_behind_and_the_wish_for_them_arrives():
    leaf = torch.ones(3, requires_grad=True)
    sent = DataProto.from_dict({"leaf": leaf, "made": leaf * 2, "plain": torch.ones(3)})
    received = in_band(sent)
    assert [received.batch[name].requires_grad for name in ("leaf", "made", "plain")] == [True, True, False]
    assert received.batch["made"].is_leaf
    assert received.batch["made"].tolist() == [2, 2, 2]
    assert not sent.batch["made"].is_leaf


def test_memory_mapped_and_locked_batches_arrive_unlocked():
    sent = DataProto(TensorDict({"x": torch.arange(3)}, batch_size=[3]).memmap_())
    received = in_band(sent)
    received.batch["y"] = torch.zeros(3)
    assert type(received.batch.get("x")) is torch.Tensor
    assert sent.batch.is_locked


def test_metrics_in_meta_info_survive():
    metrics = Metrics({"reward/mean": Mean(3.0, 4), "loss/max": Max(float("nan")), "rows": Sum(8)})
    for way in WAYS.values():
        received = way(DataProto(meta_info={"metrics": metrics})).meta_info["metrics"]
        assert isinstance(received, Metrics)
        assert received["reward/mean"] == Mean(3.0, 4)
        assert received.numbers()["loss/max"] != received.numbers()["loss/max"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_arrive_on_the_cpu():
    sent = DataProto(TensorDict({"x": torch.arange(3, device="cuda")}, batch_size=[3], device="cuda"))
    received = in_band(sent)
    assert received.batch["x"].device == received.batch.device == torch.device("cpu")
    assert received.batch["x"].tolist() == [0, 1, 2]
    assert sent.batch["x"].is_cuda


def test_an_odd_address_is_left():
    sent = DataProto.from_dict({"x": torch.rand(4, 3)})
    same(sent, out_of_band(sent, misplaced))


# ---- jagged columns


def jagged(*lengths, dtype=torch.float32):
    rows = [torch.arange(length).to(dtype) + 10 * i for i, length in enumerate(lengths)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def rows_of(tensor):
    return [row.tolist() for row in tensor.unbind()]


@pytest.mark.parametrize("way", WAYS)
def test_jagged_columns_survive(way):
    tensors = {"x": jagged(3, 1, 2, dtype=torch.bfloat16), "y": jagged(3, 1, 2), "z": jagged(1, 0, 4)}
    received = WAYS[way](DataProto(TensorDict(tensors, batch_size=[3]))).batch
    assert {name: rows_of(tensor) for name, tensor in received.items()} == {k: rows_of(v) for k, v in tensors.items()}
    assert received["x"].dtype == torch.bfloat16
    assert rows_of(received["x"].float() + received["y"]) == rows_of(tensors["y"] * 2)


def test_jagged_views_are_compacted():
    wide = torch.arange(4000.0).view(2, 2000)
    view = torch.nested.narrow(wide, 1, torch.tensor([1, 2]), torch.tensor([2, 3]), layout=torch.jagged)
    sent = DataProto(TensorDict({"x": view}, batch_size=[2]))
    assert len(pickle.dumps(sent, protocol=5)) < 2000
    assert rows_of(in_band(sent).batch["x"]) == [[1, 2], [2002, 2003, 2004]]


def test_the_ragged_dim_may_be_a_later_one():
    turned = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(1, 2)], layout=torch.jagged).transpose(1, 2)
    received = in_band(DataProto(TensorDict({"x": turned}, batch_size=[2]))).batch["x"]
    assert [row.shape for row in received.unbind()] == [(2, 3), (2, 1)]


# ---- how much is sent


def test_chunks_send_one_batch_of_bytes():
    data = DataProto.from_dict({"x": torch.rand(8, 100_000)})
    for protocol in (4, 5):
        sent = sum(len(pickle.dumps(chunk, protocol=protocol)) for chunk in data.chunk(4))
        assert 3_200_000 <= sent <= 3_210_000
    columns = DataProto.from_dict({"x": data.batch["x"][:, :100]})
    assert len(pickle.dumps(columns)) < 5000


def test_bytes_leave_the_stream_and_are_not_copied():
    data = DataProto.from_dict({"x": torch.zeros(4, 1000), "bf16": torch.zeros(4, 1000).bfloat16()})
    part, buffers = data.chunk(2)[1], []
    head = pickle.dumps(part, protocol=5, buffer_callback=buffers.append)
    assert sorted(buffer.raw().nbytes for buffer in buffers) == [4000, 8000]
    assert len(head) < 1500
    start = data.batch["x"].data_ptr() + 8000
    assert np.frombuffer(next(b.raw() for b in buffers if b.raw().nbytes == 8000)).ctypes.data == start


def test_tensors_in_objects_send_themselves_and_not_their_storage():
    whole = torch.rand(8, 100_000)
    jagged_row = jagged(2, 1)
    objects = [{"image": (row, [row.half()]), "jagged": jagged_row} for row in whole]
    data = DataProto(None, {"o": objects, "t": list(whole)}, {"first": whole[0], "all": [whole[:2]]})
    sent = [pickle.dumps(chunk) for chunk in data.select(meta_info_keys=[]).chunk(4)]
    assert sum(map(len, sent)) < 3_200_000 * 1.5 + 3_200_000 + 40_000
    again = in_band(data)
    assert again == data
    assert again.non_tensor_batch["o"][0]["image"][0].untyped_storage().nbytes() == 400_000
    again.non_tensor_batch["o"][0]["image"][0].zero_()
    assert whole[0].sum() > 0


def test_a_tensor_met_twice_is_sent_once():
    shared = torch.rand(10_000)
    data = DataProto(None, {"o": [shared, {"x": shared}, [shared]]}, {"m": shared})
    sent = pickle.dumps(data)
    assert len(sent) < 45_000
    again = pickle.loads(sent)
    assert again.non_tensor_batch["o"][0] is again.non_tensor_batch["o"][1]["x"] is again.meta_info["m"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_survives_inside_objects(dtype):
    tensor = random_tensor(dtype, (2, 3))
    for way in WAYS.values():
        arrived = way(DataProto(None, {"o": [{"x": [tensor[1]]}]})).non_tensor_batch["o"][0]["x"][0]
        assert (arrived.dtype, arrived.shape, raw(arrived)) == (dtype, (3,), raw(tensor[1]))


def test_odd_objects_travel_as_pickle_has_them():
    endless = [torch.ones(1)]
    endless.append(endless)
    parameter, sparse = torch.nn.Parameter(torch.ones(2)), torch.eye(2).to_sparse()
    inner = np.empty(2, dtype=object)
    inner[:] = [torch.ones(2)[:1], None]
    again = in_band(DataProto(None, {"o": [endless, parameter, sparse, inner, pickle.dumps, range(2)]}))
    found = again.non_tensor_batch["o"]
    assert found[0][0].item() == found[0][1][0].item() == 1
    assert type(found[1]) is torch.nn.Parameter
    assert found[2].is_sparse
    assert found[3][0].untyped_storage().nbytes() == 4
    assert found[4:].tolist() == [pickle.dumps, range(2)]


# ---- whose memory it is


def test_a_received_tensor_is_the_writable_buffer_itself_and_a_copy_of_a_read_only_one():
    data = DataProto.from_dict({"x": torch.arange(1024)})
    for access, aliases in ((mmap.ACCESS_WRITE, True), (mmap.ACCESS_READ, False)):
        with open(os.memfd_create("wire"), "w+b") as file:
            file.write(data.batch["x"].numpy().tobytes())
            file.flush()
            shared = mmap.mmap(file.fileno(), 8192, access=access)
            received = out_of_band(data, lambda _, shared=shared: shared)
            received.batch["x"].fill_(-1)
            assert (np.frombuffer(shared, np.int64) == -1).all() == aliases
            assert data.batch["x"].tolist() == list(range(1024))


def test_the_sent_batch_stays_usable_and_edits_are_sent():
    sent = DataProto.from_dict({"x": torch.zeros(4)}, {"o": [{"n": 0} for _ in range(4)]}, {"k": 0})
    first = in_band(sent)
    sent.batch["x"][1] = 5
    sent.batch["y"] = torch.ones(4)
    sent.non_tensor_batch["o"][2]["n"] = 7
    sent.meta_info["k"] = 1
    second = in_band(sent)
    assert second == sent
    assert first.batch["x"].tolist() == [0, 0, 0, 0]
    assert sent.batch["x"].tolist() == [0, 5, 0, 0]
    with ThreadPoolExecutor(4) as pool:
        assert all(each == sent for each in pool.map(in_band, [sent] * 16))


def test_copies_within_the_process_do_not_go_through_bytes():
    leaf = torch.ones(2, requires_grad=True)
    sent = DataProto.from_dict({"x": leaf}, {"o": [[1], [2]]}, {"k": [1]})
    shallow, deep = copy.copy(sent), copy.deepcopy(sent)
    assert shallow.batch is sent.batch
    assert shallow.meta_info is sent.meta_info
    assert deep == sent
    assert deep.batch["x"].data_ptr() != leaf.data_ptr()
    assert deep.meta_info["k"] is not sent.meta_info["k"]
    assert copy.deepcopy(DataProto()) == DataProto()
    sparse = DataProto(TensorDict({"x": torch.eye(2).to_sparse()}, batch_size=[2]))
    assert copy.deepcopy(sparse).batch["x"].is_sparse


def test_another_process_reads_it(tmp_path):
    sent = DataProto.from_dict({"x": random_tensor(torch.bfloat16, (3, 2))}, {"o": ["a", None, b"c"]}, {"k": 1})
    (tmp_path / "sent").write_bytes(pickle.dumps(sent))
    code = "import pickle, sys\ndata = pickle.load(open(sys.argv[1], 'rb'))\npickle.dump(data, open(sys.argv[2], 'wb'))"
    subprocess.run([sys.executable, "-c", code, tmp_path / "sent", tmp_path / "back"], check=True)
    assert pickle.loads((tmp_path / "back").read_bytes()) == sent


# ---- Ray


@pytest.fixture(scope="module")
def started_ray():
    """Ray, started here unless it runs already."""
    import ray

    started = not ray.is_initialized()
    if started:
        ray.init(
            num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )  # fmt: skip
    yield ray
    if started:
        ray.shutdown()


def test_ray_carries_every_dtype_and_gives_memory_of_ones_own(started_ray):
    ray = started_ray
    tensors = {str(dtype): random_tensor(dtype, (5, 3)) for dtype in DTYPES}
    sent = DataProto.from_dict({**tensors, "large": torch.rand(5, 50_000)}, {"o": ["a", None, {"b": [1]}, b"c", []]})
    reference = ray.put(sent.slice(1, 4))
    first, second = ray.get(reference), ray.get(reference)
    assert DataProto(None, first.non_tensor_batch) == DataProto(None, sent.slice(1, 4).non_tensor_batch)
    same(sent.slice(1, 4), first)
    same(sent.slice(1, 4), second)
    same(sent.slice(1, 4), ray.get(reference))

    @ray.remote
    def edited(data):
        data.batch["large"].add_(1)
        return data

    answer = ray.get(edited.remote(sent), timeout=120)
    assert torch.equal(answer.batch["large"], sent.batch["large"] + 1)
    same(DataProto(sent.batch.exclude("large")), DataProto(answer.batch.exclude("large")))


# ---- what is refused


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.eye(2).to_sparse(), "torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "on meta"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "torch.jagged"),
    ],
    ids=["sparse", "meta", "strided nested"],
)
def test_what_has_no_bytes_is_refused_by_name(tensor, what):
    data = DataProto(TensorDict({"fine": torch.zeros(2), "odd": tensor}, batch_size=[2]))
    with pytest.raises(DataTypeError, match=f"`odd`.*{what}"):
        pickle.dumps(data)


def test_another_version_is_refused():
    with pytest.raises(DataError, match=f"wire format {WIRE_VERSION + 1}, this process reads {WIRE_VERSION}"):
        receive(WIRE_VERSION + 1, "whatever it holds")
