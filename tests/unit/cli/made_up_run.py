"""A made-up run under the live view: ``python made_up_run.py FOLDER "CODE"``, where CODE is what its node does.

It loads no engines. The code finds the live view's parts as ``ui``, and is run in each step, as a node is.
"""

import sys
import time
from pathlib import Path
from typing import Any

from dagrl.cli.main import prepare_output
from dagrl.cli.ui import RunUi
from dagrl.executor.events import Event, OpFinished, OpStarted, RunFinished, RunStarted, StepFinished, StepStarted
from dagrl.trainer.stopping import StopRequest
from dagrl.tui.run_info import RunInfo

STEPS = 1000


def main() -> None:
    folder = Path(sys.argv[1])
    info = RunInfo(title="dagrl made-up", folder=str(folder), resume="dagrl run it --resume auto")
    code = compile(sys.argv[2], "node", "exec")
    ui = RunUi("live", info, num_steps=STEPS, seed=0)
    with ui, ui.hears(StopRequest(ui.announce)) as stop:
        folder.mkdir(exist_ok=True)
        ui.started(None)  # pyright: ignore[reportArgumentType]
        ui.listen(RunStarted(time.time(), ("grpo",), STEPS, 0))
        done = 0
        names: dict[str, Any] = {"ui": ui, "folder": folder, "step": 0, "emit": ui.listen}
        while done < STEPS and stop.signal is None and not names.get("over"):
            names["step"] = done + 1
            run_step(ui.listen, code, names)
            done += 1
            ui.between_steps(ui.listen)
        ui.listen(RunFinished(time.time(), "done", done))
    print(f"ended after {done} steps", flush=True)


def run_step(emit: Any, code: Any, names: dict[str, Any]) -> None:
    now, step = time.time(), names["step"]
    told: list[Event] = [StepStarted(now, "grpo", step), OpStarted(now, "grpo", step, "generate")]
    for event in told:
        emit(event)
    exec(code, names)
    emit(OpFinished(time.time(), "grpo", step, "generate", 8, 0.1, 0.1, 0))
    emit(StepFinished(time.time(), "grpo", step, 0.1, {"reward/mean": 0.5}))


if __name__ == "__main__":
    prepare_output()
    main()
