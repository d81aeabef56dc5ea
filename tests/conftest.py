"""What holds for every test process: offline, and OpenMP threads that do not spin at each other's expense."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
