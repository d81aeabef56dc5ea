"""What holds for every test process: offline, OpenMP threads that do not spin at each other's expense, an S3 server."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# What a shell that is not interactive has set for what it runs in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if "PYTEST_XDIST_WORKER" in os.environ:  # several test processes share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("DAGRL_EXECUTOR", "local")  # starting Ray takes seconds: tests of it ask for it


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """The URL of an empty bucket on a server of this process, which speaks S3."""
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    names = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        S3FileSystem.clear_instance_cache()
        S3FileSystem().mkdir("runs")
        yield "s3://runs"
        S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(params=["local", "memory", "s3"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL that nothing is at yet, on each kind of file system."""
    name = tmp_path.name
    match request.param:
        case "local":
            return str(tmp_path / "run")
        case "memory":
            return f"memory://{name}"
        case _:
            return f"{request.getfixturevalue('s3_bucket')}/{name}"


@pytest.fixture(scope="session")
def ray_session() -> Iterator[object]:
    """A local Ray for all tests that need one, with more CPUs to give out than there are."""
    from dagrl.controller import start_ray

    with start_ray(num_cpus=16) as session:
        yield session


@pytest.fixture(scope="module")
def one_thread_each(ray_session: object) -> Iterator[None]:
    """The Ray of the test session; what a module starts there, and the module itself, compute with one thread each."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)
