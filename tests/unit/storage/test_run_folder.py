"""The run folder: new or refused, files whole, lines always JSON."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dagrl.errors import ConfigError
from dagrl.storage.json_lines import json_line
from dagrl.storage.run_folder import RunFolder


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
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is a file"):
        RunFolder(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be made"):
        RunFolder(str(tmp_path / "file" / "below"))


@pytest.mark.parametrize("url", ["memory://run", "nosuchscheme://x"])
def test_what_is_not_a_local_disk_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--out"):
        RunFolder(url)


def test_appended_lines_and_whole_files(tmp_path: Path) -> None:
    with RunFolder(f"file://{tmp_path}/run") as folder:
        folder.append("metrics.jsonl", {"step": 1})
        folder.append("metrics.jsonl", {"step": 2})
        folder.flush()
        assert [json.loads(line)["step"] for line in (folder.path / "metrics.jsonl").read_text().splitlines()] == [1, 2]
        folder.write_text("plan.json", "[]")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"metrics.jsonl", "plan.json"}
