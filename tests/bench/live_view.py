"""What the live view costs: a run with the view and without it, in turns, block after block.

``python -m tests.bench.live_view``. The run is in a pseudo-terminal of 120 x 40; the view is the process that
``dagrl run`` starts. Prints one JSON line last: the share of a core that the view takes, what it adds to a step of the
run in wall and CPU time, what a frame, the drawing in it and an event cost, and how long a log of 100 MB takes to open.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.__main__ import ROOT, WORK

_SIZE = (40, 120)
_STEP_2 = re.compile(r'"step": 2\b')
#: Seconds that the view has to start before its time counts.
_STARTING = 2.0


def in_terminal(command: list[str]) -> None:
    """Run a command on a terminal of its own, whose screen nobody reads."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        start_new_session=True,
        cwd=ROOT,
        env=environment,
        preexec_fn=_own_terminal,
    )
    os.close(theirs)
    threading.Thread(target=_drain, args=(ours,), daemon=True).start()
    if process.wait() != 0:
        raise SystemExit(process.returncode)


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _drain(screen: int) -> None:
    try:
        while os.read(screen, 1 << 16):
            pass
    except OSError:
        return


def measure(blocks: int, steps: int) -> dict[str, Any]:
    """Blocks of steps in turn, on this process's terminal."""
    import psutil
    import torch

    from dagrl.cli.pipeline_file import load_pipelines
    from dagrl.compiler import compile_pipelines
    from dagrl.executor.events import Event
    from dagrl.trainer.loop import run
    from dagrl.trainer.records import Record
    from dagrl.tui.feed import Feed
    from dagrl.tui.run_info import RunInfo

    torch.set_num_threads(1)
    pipelines = load_pipelines(str(ROOT / "pipelines/grpo.py"), {k: str(v) for k, v in WORK.items()}).pipelines[:1]
    plans = compile_pipelines(pipelines)
    info = RunInfo(title="grpo", models=("zoo:tiny",), executor="local", folder="runs/bench", plans=tuple(plans))
    feed: Feed | None = None
    wall: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    view_share: list[float] = []
    started = marked = 0.0
    before: float = 0.0

    def view_seconds() -> float:
        assert feed is not None
        times = psutil.Process(feed._process.pid).cpu_times()
        return times.user + times.system

    def on_event(event: Event) -> None:
        if feed is not None:
            feed.tell(event)

    def on_record(record: Record) -> None:
        nonlocal feed, started, marked, before
        if record.step < 3 or (record.step - 3) % steps:
            return
        if record.step > 3:
            seconds = time.perf_counter() - started
            wall[feed is not None].append(seconds / steps)
            cpu[feed is not None].append((time.process_time() - marked) / steps)
            if feed is not None:
                assert feed.alive
                view_share.append((view_seconds() - before) / seconds)
                feed.close()
                feed = None
            else:
                feed = Feed(info, 1)
                time.sleep(_STARTING)
                before = view_seconds()
        started, marked = time.perf_counter(), time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        num_steps = 3 + 2 * blocks * steps
        run(pipelines, out=f"{folder}/run", steps=num_steps, plans=plans, on_record=on_record, on_event=on_event)
        opening = open_seconds(f"{folder}/run")
    off, on = statistics.median(wall[False]), statistics.median(wall[True])
    return {
        "s_per_step": {"without": round(off, 4), "with": round(on, 4)},
        "view_share_of_a_core": round(statistics.median(view_share), 4),
        "step_time_added": round(on / off - 1, 4),
        "run_cpu_added": round(statistics.median(cpu[True]) / statistics.median(cpu[False]) - 1, 4),
        **opening,
        **view_costs(),
    }


def view_costs(*, tries: int = 60) -> dict[str, float]:
    """CPU time of a frame of 120 x 40, of the drawing in it, and of an event, in a run of many steps."""
    sys.path.append(str(ROOT / "tests"))
    from recorded_run import info, long_run

    from dagrl.tui.box_drawing import draw
    from dagrl.tui.frame import frame
    from dagrl.tui.state import RunState
    from tests.unit.tui.step_graphs import graph_of, labels_of

    taken, state = list(long_run(400)), RunState()
    events = _cpu_ms(lambda: [state.apply(event) for event in taken], 1)
    frames = iter(range(tries))
    graph = graph_of([(0, 1), (1, 2), (2, 3), (1, 4), (3, 5), (4, 5)], 6)
    labels = labels_of(graph, 3)
    return {
        "frame_cpu_ms": round(_cpu_ms(lambda: frame(state, info(), 120, 40, next(frames) * 0.1), tries), 2),
        "drawing_cpu_ms": round(_cpu_ms(lambda: draw(graph, labels, 140, 40), tries), 2),
        "event_cpu_us": round(events / len(taken) * 1000, 1),
    }


def _cpu_ms(act: Callable[[], object], tries: int) -> float:
    """The median of some tries."""
    costs: list[float] = []
    for _ in range(tries):
        started = time.process_time()
        act()
        costs.append((time.process_time() - started) * 1000)
    return statistics.median(costs)


def open_seconds(run_folder: str, *, tries: int = 3) -> dict[str, Any]:
    """Wall seconds of ``dagrl view``, not on a terminal, on the run, and on the run with a log of 100 MB."""
    short = statistics.median(_view_seconds(run_folder) for _ in range(tries))
    _lengthen(Path(run_folder) / "events")
    long = statistics.median(_view_seconds(run_folder) for _ in range(tries))
    return {"view_opens_s": {"short log": round(short, 2), "100 MB": round(long, 2)}}


def _view_seconds(run_folder: str) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "dagrl.cli", "view", run_folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - started


def _lengthen(events: Path) -> None:
    """Write the second step of the log again and again, with the numbers of later steps, up to 100 MB."""
    (first, *_) = sorted(events.iterdir())
    lines = first.read_text().splitlines(keepends=True)
    step = "".join(line for line in lines if _STEP_2.search(line))
    head = [line for line in lines if '"step"' not in line and "RunFinished" not in line]
    with first.open("w") as file:
        file.writelines(head)
        for number in range(2, 2 + 100_000_000 // len(step)):
            file.write(_STEP_2.sub(f'"step": {number}', step))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.bench.live_view")
    parser.add_argument("--blocks", type=int, default=3, help="of each kind")
    parser.add_argument("--steps", type=int, default=30, help="steps in a block")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.into is not None:
        options.into.write_text(json.dumps(measure(options.blocks, options.steps)))
        return
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "result.json"
        arguments = ["--blocks", str(options.blocks), "--steps", str(options.steps), "--into", str(into)]
        in_terminal([sys.executable, "-m", "tests.bench.live_view", *arguments])
        measured = json.loads(into.read_text())
    print(json.dumps({"bench": "live_view", "load1": os.getloadavg()[0], **measured}))


if __name__ == "__main__":
    main()
