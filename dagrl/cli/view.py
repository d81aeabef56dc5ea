"""``dagrl view``: the live view of a run that goes on elsewhere, or is over, from its folder."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import click

from dagrl.cli.output import say
from dagrl.cli.run_facts import info_of
from dagrl.cli.stopped import exit_code
from dagrl.cli.ui_option import what_live_lacks
from dagrl.errors import ConfigError, Problem

if TYPE_CHECKING:
    from rich.text import Text

    from dagrl.storage.run_reader import RunReader
    from dagrl.tui.run_info import RunInfo

#: Seconds between two looks at a folder that is not on a local disk, and at whether the run lives.
_FAR, _ALIVE = 5.0, 1.0
#: The frame that is printed where there is no terminal.
_WIDTH, _HEIGHT = 120, 40


@click.command()
@click.argument("folder", metavar="RUN")
@click.option("--at", type=click.IntRange(min=1), metavar="STEP", help="Show the run as it was after that step.")
@click.option(
    "--ui", type=click.Choice(["live", "text"]),
    help="The view, or one frame as text. [default: live on a terminal, else text]",
)  # fmt: skip
@click.pass_context
def view(context: click.Context, folder: str, at: int | None, ui: Literal["live", "text"] | None) -> None:
    """Show the run in the folder RUN, any fsspec URL, while it goes on or after it."""
    from dagrl.storage.run_reader import RunReader

    missing = what_live_lacks()
    if ui == "live" and missing is not None:
        raise click.UsageError(f"`--ui live` needs a terminal, and {missing}: use `--ui text`")
    followed = Followed(RunReader(folder), at)
    if ui == "live" or (ui is None and missing is None):
        from dagrl.tui.screen import Screen
        from dagrl.tui.viewer import Viewer

        ended_by = Viewer(Screen(), followed).run()
        if ended_by is not None:
            context.exit(exit_code(ended_by))
        return
    width = shutil.get_terminal_size((_WIDTH, _HEIGHT)).columns
    lines = followed.picture(width if width > 0 else _WIDTH, _HEIGHT, 0, with_help=False)
    say("\n".join(line.plain.rstrip() for line in lines).rstrip())


class Followed:
    """A source that reads the events of a run folder; with ``at``, those until the end of that step."""

    fd = None

    def __init__(self, reader: RunReader, at: int | None) -> None:
        from dagrl.tui.replay import rebuild

        self._reader = reader
        self._at = at
        self._rebuild = rebuild
        self._info = replace(_info(reader), at=at)
        self._info_once_gone = replace(self._info, title=f"{self._info.title} (its process is gone)")
        self._read_at = self._looked_at = time.monotonic()
        self._lives = reader.is_in_use()
        self._state = self._rebuild(reader.all_lines(), at)
        self._is_behind = False
        self.is_over = False
        if at is not None:
            self._check_step(at)

    def read(self) -> bool:
        """Take the events that have come since."""
        now = time.monotonic()
        if self._at is not None or (not self._reader.is_local and now - self._read_at < _FAR):
            return False
        self._read_at = now
        try:
            return self._follow() | self._look()
        except ConfigError:  # a connection that is back the next time
            self._is_behind = True
            return False

    def pressed(self, key: str) -> None:
        """End the view by q."""
        self.is_over = key == "q"

    def picture(self, width: int, height: int, page: int, *, with_help: bool) -> list[Text]:
        """The frame of now; that of the last event where no more will come."""
        from dagrl.tui.frame import frame

        heard = self._state.heard_at
        is_over = self._at is not None or self._state.outcome is not None
        now = heard if (is_over or not self._lives) and heard is not None else time.time()
        info = self._info if is_over or self._lives else self._info_once_gone
        return frame(self._state, info, width, height, now, keys=with_help, sample_page=page)

    def _follow(self) -> bool:
        from dagrl.tui.event_line import read_event

        if self._is_behind or self._reader.is_replaced():
            self._state = self._rebuild(self._reader.all_lines(), None)
            self._is_behind = False
            return True
        lines = list(self._reader.new_lines())
        for line in lines:
            event = read_event(line)
            if event is not None:
                self._state.apply(event)
        return bool(lines)

    def _look(self) -> bool:
        """See whether the run lives; whether that has changed."""
        if time.monotonic() - self._looked_at < _ALIVE:
            return False
        self._looked_at = time.monotonic()
        before, self._lives = self._lives, self._reader.is_in_use()
        return before != self._lives

    def _check_step(self, at: int) -> None:
        walk = self._state.last_walk
        if walk is not None and walk.step == at:
            return
        done = self._rebuild(self._reader.all_lines(), None).step_done
        there = "none is done yet" if not done else f"steps 1 to {done} are there" if done > 1 else "step 1 is there"
        fix = f"give one of them as `--at`, such as `--at {done}`" if done else "wait for the first step"
        raise ConfigError([Problem(f"the run in `{self._reader.url}` has no step {at}: {there}.", fix=fix)])


def _info(reader: RunReader) -> RunInfo:
    """What the plans say.

    Raises:
        ConfigError: when they are damaged, or of another version.
    """
    from dagrl.compiler.plan import plan_from_dict

    try:
        info = info_of([plan_from_dict(one) for one in reader.plans], folder=reader.url, steers=False)
        for plan in info.plans:
            info.graph(plan.pipeline)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"`{reader.url}/plan.json` holds no plans that this version of dagrl can read."
        fix = "view the run with the version of dagrl that ran it, or give the folder of another run"
        raise ConfigError([Problem(what, fix=fix)]) from error
    return info
