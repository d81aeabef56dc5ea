"""Property tests draw the same examples on every run and have no deadline, so a busy machine fails none."""

from hypothesis import settings

settings.register_profile("data", max_examples=50, deadline=None, derandomize=True, database=None)
settings.load_profile("data")
