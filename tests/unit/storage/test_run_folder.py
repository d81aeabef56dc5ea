"""The run folder: new or refused, files whole, lines always JSON."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dagrl.errors import ConfigError
from dagrl.storage.folder import Folder, write_folder
from dagrl.storage.json_lines import json_line
from dagrl.storage.run_folder import RunFolder, contents
from dagrl.storage.segments import read_lines


def test_lines_survive_odd_values() -> None:
    record = {
        "nan": math.nan, "inf": -math.inf, "numpy": np.float32(0.5), "tensor": torch.tensor(3), "flag": np.bool_(True),
        "text": "ä\u2028[/red]\ud800", "nested": {"list": (1, math.nan)}, "none": None, "object": Path("x"),
    }  # fmt: skip
    line = json_line(record)
    assert line.isascii()
    assert "\n" not in line
    read = json.loads(line)
    assert read["nan"] is None
    assert read["inf"] is None
    assert (read["numpy"], read["tensor"], read["flag"]) == (0.5, 3, True)
    assert read["text"] == record["text"]
    assert read["nested"] == {"list": [1, None]}
    assert read["object"] == "x"


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "keep").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        RunFolder(str(tmp_path))
    with pytest.raises(ConfigError, match=r"holds `keep` and no .*: no run has made it"):
        RunFolder(str(tmp_path), resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is a file"):
        RunFolder(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be made"):
        RunFolder(str(tmp_path / "file" / "below")).make()


def test_a_bucket_that_is_not_there_is_refused(s3_bucket: str) -> None:
    with pytest.raises(ConfigError, match=r"run folder `s3://nowhere/run` cannot be made: "):
        RunFolder("s3://nowhere/run").make()


def test_a_protocol_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="--out"):
        RunFolder("nosuchscheme://x")


def test_lines_files_and_the_lock(any_url: str) -> None:
    with RunFolder(any_url) as folder:
        assert contents(any_url) == []
        folder.make()
        folder.begin({})
        with pytest.raises(ConfigError, match="is in use"):
            RunFolder(any_url, resume=True)
        for step in (1, 2):
            folder.append("metrics", {"step": step})
        folder.write_json("plan.json", {"x": math.nan})
    assert [line["step"] for line in read_lines(any_url, "metrics")] == [1, 2]
    assert contents(any_url) == ["metrics", "plan.json"]


def test_going_on_drops_what_came_after_the_checkpoint(any_url: str) -> None:
    with RunFolder(any_url) as folder:
        folder.make()
        folder.begin({})
        folder.write_json("config.json", {})
        folder.append("metrics", {"step": 1})
        lines = folder.cut()
        for name in ("metrics", "events"):
            folder.append(name, {"step": 2})
    write_folder(folder.below("model"), lambda path: (path.mkdir(), (path / "config.json").write_text("{}")))
    with RunFolder(any_url, resume=True) as folder:
        assert not folder.is_new
        folder.make()
        folder.begin(lines)
        folder.append("metrics", {"step": 2})
    assert [line["step"] for line in read_lines(any_url, "metrics")] == [1, 2]
    assert read_lines(any_url, "events") == []
    assert set(contents(any_url)) - {"events"} == {"config.json", "metrics"}


def test_what_a_killed_run_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / "config.json.part").write_text("{")
    (tmp_path / ".model.abc").mkdir()
    (tmp_path / "lock.json").write_text("")
    with RunFolder(str(tmp_path), resume=True) as folder:
        folder.make()
        folder.begin({})
    assert list(tmp_path.iterdir()) == []


def write_model(path: Path) -> None:
    (path / "below").mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "below" / "z.bin").write_bytes(b"z")


def test_a_folder_goes_to_any_url(any_url: str) -> None:
    write_folder(f"{any_url}/model", write_model)
    assert contents(f"{any_url}/model") == ["below", "config.json"]
    assert contents(f"{any_url}/model/below") == ["z.bin"]


def test_the_config_of_a_folder_arrives_last() -> None:
    write_folder("memory://config_last", write_model)
    folder = Folder("memory://config_last")
    times = [folder.fs.info(folder.path(name))["created"] for name in ("below/z.bin", "config.json")]
    assert times == sorted(times)
    assert times[0] < times[1]
