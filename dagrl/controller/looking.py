"""Threads that ask Ray about workers, and the end of Ray: Ray ends a process in which one asks while it shuts down."""

import threading

#: Held by a thread of ours while it asks, and by who shuts Ray down.
LOOKING = threading.RLock()
