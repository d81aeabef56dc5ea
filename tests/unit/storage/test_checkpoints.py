"""Checkpoints on every kind of file system: complete or invisible, the newest sound one, the last few kept."""

import json
import logging
import pickle
from pathlib import Path

import pytest
import torch

from dagrl.errors import CheckpointError
from dagrl.storage.checkpoints import MANIFEST, Checkpoint, Checkpoints, StatePart, write_part
from dagrl.storage.folder import Folder


def save(checkpoints: Checkpoints, step: int, **state) -> Checkpoint:
    folder = checkpoints.begin(step)
    parts = [write_part(folder, name, {"w": torch.full((3,), float(step))}, {"name": name}) for name in ("a", "b")]
    return checkpoints.publish(step, parts, {"step": step, **state})


def test_what_was_saved_is_read_back(any_url: str) -> None:
    tensors = {
        "bf16": torch.tensor([[1.5, -0.0]], dtype=torch.bfloat16), "int": torch.arange(3), "empty": torch.empty(0, 2),
        "scalar": torch.tensor(True), "strided": torch.arange(6.0).reshape(2, 3).T,
    }  # fmt: skip
    info = {"text": "ä\u2028", "nested": {"list": [1, 0.1, None, True]}}
    checkpoints = Checkpoints(any_url, keep=2)
    record = write_part(checkpoints.begin(7), "part", tensors, info)
    checkpoints.publish(7, [record], {"lines": {"metrics": 3}})
    found = Checkpoints(any_url, keep=2).latest_valid()
    assert found is not None
    assert (found.step, found.names, found.state) == (7, ("part",), {"lines": {"metrics": 3}})
    part = found.open_part("part")
    assert part.info == info
    assert set(part.names) == set(tensors)
    for name, tensor in tensors.items():
        assert part.tensor(name).dtype == tensor.dtype
        assert part.tensor(name).equal(tensor)
    with pytest.raises(CheckpointError, match="no part `other`, only part"):
        found.open_part("other")


def test_tensors_that_share_memory_are_saved_each_by_itself(tmp_path) -> None:
    whole = torch.arange(6.0)
    write_part(str(tmp_path), "p", {"whole": whole, "view": whole[2:4], "again": whole}, {})
    part = StatePart(str(tmp_path), "p")
    assert part.tensor("view").tolist() == [2, 3]
    assert part.tensor("again").equal(whole)


def test_a_checkpoint_can_be_sent_to_another_process(tmp_path) -> None:
    save(Checkpoints(str(tmp_path), keep=1), 1)
    found = Checkpoints(str(tmp_path), keep=1).latest_valid()
    assert found is not None
    assert pickle.loads(pickle.dumps(found.open_part))("a").tensor("w").tolist() == [1, 1, 1]


def test_an_unfinished_one_is_invisible_and_cleaned(any_url: str) -> None:
    checkpoints = Checkpoints(any_url, keep=3)
    save(checkpoints, 1)
    folder = checkpoints.begin(2)
    write_part(folder, "a", {"w": torch.zeros(3)}, {})
    found = checkpoints.latest_valid()
    assert found is not None
    assert found.step == 1
    assert Folder(any_url).exists("step_000002")
    checkpoints.clean()
    assert Folder(any_url).names() == ["step_000001"]


def test_steps_are_numbers_and_the_newest_few_are_kept(any_url: str) -> None:
    checkpoints = Checkpoints(any_url, keep=2)
    for step in (8, 9, 10):
        save(checkpoints, step)
    assert Folder(any_url).names() == ["step_000009", "step_000010"]
    found = checkpoints.latest_valid()
    assert found is not None
    assert found.step == 10


def test_step_9_comes_before_step_10_however_they_are_written(tmp_path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=5)
    for step in (9, 10):
        save(checkpoints, step)
        (tmp_path / f"step_{step:06d}").rename(tmp_path / f"step_{step}")
    found = checkpoints.latest_valid()
    assert found is not None
    assert found.step == 10


def test_the_old_one_stays_until_the_new_one_is_complete(any_url: str) -> None:
    checkpoints = Checkpoints(any_url, keep=1)
    save(checkpoints, 1)
    parts = [write_part(checkpoints.begin(2), "a", {}, {})]
    assert Folder(any_url).exists(f"step_000001/{MANIFEST}")
    checkpoints.publish(2, parts, {})
    assert Folder(any_url).names() == ["step_000002"]


def test_a_run_that_goes_on_from_before_a_damaged_one_replaces_it(tmp_path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for step in (1, 2, 3):
        save(checkpoints, step)
    (tmp_path / "step_000003" / MANIFEST).write_text("")
    save(checkpoints, 2, again=True)
    assert Folder(str(tmp_path)).names() == ["step_000002"]
    found = checkpoints.latest_valid()
    assert found is not None
    assert found.state["again"]


def truncate(data: bytes) -> bytes:
    return data[:-1]


def empty(data: bytes) -> bytes:
    return b""


def flip(data: bytes) -> bytes:
    """One bit in the middle: in a manifest inside a checksum, in a part inside the header or the tensors."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [truncate, empty, flip])
@pytest.mark.parametrize("name", ["a.safetensors", "b.safetensors", MANIFEST])
def test_a_damaged_newest_one_is_passed_over_with_a_warning(
    any_url: str, name: str, damage, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(any_url, keep=2)
    for step in (1, 2):
        save(checkpoints, step)
    folder = Folder(any_url).below("step_000002")
    folder.write(name, damage(folder.read(name)))
    with caplog.at_level(logging.WARNING):
        found = Checkpoints(any_url, keep=2).latest_valid()
    assert found is not None
    assert found.step == 1
    (record,) = caplog.records
    assert f"{any_url}/step_000002" in record.getMessage()
    assert f"`{name}`" in record.getMessage()


def test_a_missing_part_and_another_format_are_named(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=3)
    save(checkpoints, 1)
    (tmp_path / "step_000001/a.safetensors").unlink()
    save(checkpoints, 2)
    (tmp_path / "step_000002").rename(tmp_path / "step_000003")
    assert checkpoints.latest_valid() is None
    assert [record.getMessage().partition("passed over: ")[2] for record in caplog.records] == [
        "it is of step 2",
        "`a.safetensors` is missing",
    ]


def test_every_bit_of_a_manifest_counts(tmp_path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=1)
    save(checkpoints, 1, value=0.1)
    path = tmp_path / "step_000001" / MANIFEST
    content = json.loads(path.read_text())
    content["content"]["state"]["value"] = 0.2
    path.write_text(json.dumps(content))
    assert checkpoints.latest_valid() is None


def test_no_place_for_a_pickle(tmp_path) -> None:
    class Evil:
        def __reduce__(self):
            return print, ("run",)

    with pytest.raises(TypeError):
        write_part(str(tmp_path), "p", {}, {"evil": Evil()})
    with pytest.raises(ValueError):
        write_part(str(tmp_path), "p", {}, {"nan": float("nan")})
    (tmp_path / "p.safetensors").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(Exception, match=r"[Hh]eader"):
        StatePart(str(tmp_path), "p").names


def test_at_least_one_is_kept(tmp_path) -> None:
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(str(tmp_path), keep=0)


def test_a_part_that_cannot_be_written_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no folder")
    with pytest.raises(CheckpointError, match=r"`actor-00000` cannot be written to `.*/taken`: "):
        write_part(str(tmp_path / "taken"), "actor-00000", {"a": torch.zeros(2)}, {})
