"""The live view of a run and the drawings of its plan: what a terminal shows, from events and plans alone.

Nothing here trains, talks to workers or reads a clock, but for `live` and `feed`, which run the view beside a run. This
is, with `cli`, the only place that knows rich.
"""
