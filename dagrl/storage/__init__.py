"""Files on any file system: the run folder. fsspec lives here only; nothing here knows a tensor column."""
