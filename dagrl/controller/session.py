"""Starting a local Ray, joining a cluster, and ending what was started."""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from dagrl.controller import janitor
from dagrl.controller.looking import LOOKING
from dagrl.errors import ClusterError, Problem

#: Ray's socket paths must stay below 108 characters; they add about 70 to its folder.
_LONGEST_FOLDER = 34
_session: RaySession | None = None


@dataclass(eq=False)
class RaySession:
    """A Ray that this process uses, and ends if it started it."""

    address: str
    _local: _Local | None = None
    _joined: bool = False

    def close(self) -> None:
        """Leave Ray; end the processes and remove the folders of one that was started for this session."""
        global _session
        if _session is self:
            _session = None
        if self._joined or self._local is not None:
            with LOOKING:
                _ray().shutdown()
            self._joined = False
        if self._local is not None:
            self._local.end()
            self._local = None
        atexit.unregister(self.close)

    def __enter__(self) -> RaySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_ray(
    address: str | None = None,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    *,
    connect_timeout: float = 8.0,
) -> RaySession:
    """Join the Ray at ``address`` or RAY_ADDRESS, or start one on this machine; one that this process has is reused.

    A started Ray has ``num_cpus`` CPUs to give out, by default as many as there are cores; they are a number only and
    may exceed these. It listens on loopback alone, prints nothing, and ends with `RaySession.close` or with this
    process, however it ends. Call this from a thread that lives as long as the session: Linux ends the processes with
    the thread that started them.

    Raises:
        ClusterError: when no Ray answers at the address.
    """
    global _session
    ray = _ray()
    if ray.is_initialized():
        return RaySession(ray.get_runtime_context().gcs_address)
    _silence(ray)
    address = address or os.environ.get("RAY_ADDRESS") or None
    session = _start(ray, num_cpus, num_gpus) if address in (None, "local") else _join(ray, address, connect_timeout)
    atexit.register(session.close)
    _session = session
    return session


def started_here() -> bool:
    """Whether the Ray in use was started by `start_ray` in this process."""
    return _session is not None and _session._local is not None  # pyright: ignore[reportPrivateUsage]


def import_root() -> list[str]:
    """The folder that dagrl is imported from, unless every interpreter of this installation looks there anyway."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    return [] if root in map(os.path.realpath, [*site.getsitepackages(), site.getusersitepackages()]) else [root]


@dataclass(frozen=True)
class _Local:
    """A started Ray: its folder, the process that cleans up after it, and the environment to restore."""

    folder: str
    cleaner: subprocess.Popen[bytes]
    auth: Mapping[str, str | None]

    def end(self) -> None:
        """Have what is left of it ended and removed."""
        assert self.cleaner.stdin is not None
        self.cleaner.stdin.close()
        try:
            self.cleaner.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.cleaner.kill()
            self.cleaner.wait()
        _authenticate(self.auth)


def _ray() -> Any:
    """Ray, told by environment variables to report nothing."""
    defaults = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


def _job() -> Any:
    from dagrl.controller.plain_job import PlainJob  # loads Ray

    return PlainJob()


def _silence(ray: Any) -> None:
    """Keep Ray's own lines from the console, also those on lost workers; its errors reach the user as ours."""
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    ray._private.ray_logging.stdout_deduplicator.skip_re = re.compile("")


def _start(ray: Any, num_cpus: int | None, num_gpus: int | None) -> RaySession:
    folder = tempfile.mkdtemp(prefix="dagrl-ray-", dir=_folder_for_sessions())
    cleaner = _start_cleaner(folder)
    environment = _authentication()
    before = {name: os.environ.get(name) for name in environment}
    _authenticate(environment)
    try:
        with _loopback_addresses(ray), _environment_of_processes(folder), _own_signals():
            context = ray.init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=False,
                configure_logging=False,
                log_to_driver=False,
                job_config=_job(),
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
            )
    except BaseException:
        _Local(folder, cleaner, before).end()
        raise
    return RaySession(context.address_info["gcs_address"], _Local(folder, cleaner, before))


@contextmanager
def _own_signals() -> Generator[None]:
    """Keep this process's answer to SIGTERM: Ray puts one of its own in its place that exits in silence."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _join(ray: Any, address: str, timeout: float) -> RaySession:
    with ExitStack() as stack:
        options: dict[str, str] = {}
        if _only_on_loopback(ray, address):
            stack.enter_context(_loopback_addresses(ray))
            options["_node_ip_address"] = "127.0.0.1"
        try:
            if address != "auto" and ("://" in address or ":" not in address):
                raise ValueError("an address is `host:port` or `auto`")
            found = ray._private.services.canonicalize_bootstrap_address(address)
            if found is None:
                raise ConnectionError("no Ray was started on this machine with `ray start`")
            _see_it_answers(found, timeout)
            ray.init(address=found, configure_logging=False, log_to_driver=False, job_config=_job(), **options)
        except (OSError, RuntimeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise _unreachable(address, reason.strip().split("\n")[0].rstrip(".")) from None
    return RaySession(ray.get_runtime_context().gcs_address, _joined=True)


def _only_on_loopback(ray: Any, address: str) -> bool:
    """Whether the address is on loopback, and what listens there does not on this node's own address as well."""
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost") or not port.isdecimal():
        return False
    try:
        socket.create_connection((ray._private.services.get_node_ip_address(), int(port)), 1.0).close()
    except OSError:
        return True
    return False


def _see_it_answers(address: str, timeout: float) -> None:
    """Ask for the cluster's id in a process that can be ended; asked in this one, Ray would wait for minutes.

    Raises:
        OSError: when nothing listens at ``host:port``, or what does is no Ray that lets us in.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    ask = [sys.executable, "-c", "import sys, ray; ray._raylet.GcsClient(address=sys.argv[1])", address]
    try:
        asked = subprocess.run(ask, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"what listens there did not answer as Ray within {timeout:g} s") from None
    if asked.returncode:
        refused = "AuthenticationError" in asked.stderr
        raise ConnectionError("it wants another RAY_AUTH_TOKEN" if refused else "what listens there is no Ray")


def _unreachable(address: str, reason: str) -> ClusterError:
    what = f"no Ray cluster can be joined at `{address}`: {reason}."
    fix = "check the address (`--address` or RAY_ADDRESS); without one, a Ray is started on this machine"
    return ClusterError([Problem(what, fix=fix)])


def _authentication() -> dict[str, str | None]:
    """A token of this run's own, so that no file of the user's is written; nothing where the user has decided."""
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN" in os.environ:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _authenticate(values: Mapping[str, str | None]) -> None:
    """Set these variables and have Ray look at them anew: it reads them when it is loaded and keeps the token."""
    _set_environment(values)
    raylet = _ray()._raylet
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _loopback_addresses(ray: Any) -> Generator[None]:
    """Have Ray take 127.0.0.1 for this node's address, by a switch meant for Windows and macOS."""
    constants = ray._private.ray_constants
    enabled = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled


@contextmanager
def _environment_of_processes(folder: str) -> Generator[None]:
    """While Ray starts, have its processes listen on loopback, find dagrl, and bear the mark of their folder."""
    path = [*import_root(), *filter(None, [os.environ.get("PYTHONPATH")])]
    started: dict[str, str | None] = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        janitor.MARK: folder,
        "PYTHONPATH": os.pathsep.join(path) or None,
    }
    before = {name: os.environ.get(name) for name in started}
    _set_environment(started)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _folder_for_sessions() -> str:
    """The folder for temporary files, or /tmp where its name is too long for sockets."""
    usual = tempfile.gettempdir()
    return usual if len(usual) + len("/dagrl-ray-12345678") <= _LONGEST_FOLDER or not Path("/tmp").is_dir() else "/tmp"


def _start_cleaner(folder: str) -> subprocess.Popen[bytes]:
    """A small process that outlives this one by seconds, to end and remove what it leaves."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", janitor.__file__, folder, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
