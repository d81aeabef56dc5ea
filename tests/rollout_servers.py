"""Servers on loopback: vLLM's own in a process, and small ones that answer as one does, with the faults of a test."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rollout_engines import CONTEXT, PAD, STOPS, VOCAB

from dagrl.engines.rollout.server import ServerRollout, start_server_rollout
from dagrl.engines.weights import layout_of
from dagrl.graph.rollouts import server

_START_SECONDS = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(urls, model, *, hands_over=True, stops=STOPS, context=CONTEXT, vocab_size=VOCAB, **options) -> ServerRollout:
    return start_server_rollout(
        server(urls, **options),
        layout=layout_of(model),
        vocab_size=vocab_size,
        stop_token_ids=stops,
        pad_token_id=PAD,
        context_length=context,
        hands_over=hands_over,
    )


@contextmanager
def vllm_server(folder, *options):
    """The address and the process of vLLM's server for a model folder; all of its processes are ended afterwards."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)),
        *("--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16"),
        *("--kv-cache-memory-bytes", str(10**8), *options),
    ]
    environment = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    url = f"http://127.0.0.1:{port}/v1"
    with tempfile.TemporaryFile("w+") as log:
        # A session of its own: the engine is a process of the server's, which outlives a server that is killed.
        started = {"env": environment, "stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, **started)
        try:
            _wait_for(url, process, log)
            yield url, process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(url, process, log) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/models", timeout=2).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    log.seek(0)
    raise AssertionError(f"no server after {_START_SECONDS} s, or it ended: {log.read()[-2000:]}")


class RecordedServer:
    """Answers as a completions server whose model draws the seed's digits; a test changes what it answers.

    ``faults`` are the (status, headers) of the next answers to rows, ``rows`` the bodies of all that were asked for.
    """

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.calls: list[tuple[str, dict]] = []
        self.faults: list[tuple[int, dict]] = []
        self.busy_resets = 0
        self.delay = 0.0
        self.models = ["tiny"]
        self.max_model_len = CONTEXT
        self.vocab_size = VOCAB
        self.certain = 0.0
        self.token_ids = True
        self.dev_mode = True
        self.api_key: str | None = None
        self.born = 1.0
        self.most_at_once = 0
        self.loaded: list[str] = []
        self._at_once = 0
        self._lock = threading.Lock()

    def answer(self, method, path, headers, body):
        """(status, headers, answer) of a request."""
        if self.api_key is not None and headers.get("Authorization") != f"Bearer {self.api_key}":
            return 401, {}, _error("Unauthorized")
        match path:
            case "/metrics":
                return 200, {}, f"# TYPE x\nprocess_start_time_seconds {self.born}\n"
            case "/v1/models":
                models = [{"id": name, "max_model_len": self.max_model_len} for name in self.models]
                return 200, {}, {"data": models}
            case "/v1/completions":
                return self._completion(body)
            case "/collective_rpc" | "/reset_prefix_cache" if self.dev_mode:
                return self._call(path, body)
        return 404, {}, {"detail": "Not Found"}

    def _call(self, path, body):
        self.calls.append((path, body))
        if path == "/reset_prefix_cache":
            self.busy_resets -= 1
            return 200, {}, {"success": self.busy_resets < 0}
        if "method" not in body:
            return 400, {}, _error("Missing 'method' in request body")
        folder = body["kwargs"]["weights_path"]
        self.loaded = sorted(os.listdir(folder))
        return 200, {}, {"results": [None]}

    def _completion(self, body):
        if max(body["prompt"]) >= self.vocab_size:
            return 400, {}, _error(f"Token id {max(body['prompt'])} is out of vocabulary")
        if body["top_k"] == 1:
            return 200, {}, self._drawn([3], [self.certain])
        with self._lock:
            self.rows.append(body)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            fault = self.faults.pop(0) if self.faults else None
        time.sleep(self.delay if fault is None else 0.0)
        with self._lock:
            self._at_once -= 1
        if fault is not None:
            return *fault, _error("a fault")
        tokens = [3 + int(digit) for digit in str(body["seed"])][: body["max_tokens"]]
        return 200, {}, self._drawn(tokens, [-0.5] * len(tokens))

    def _drawn(self, tokens, logprobs):
        choice = {"finish_reason": "length", "logprobs": {"token_logprobs": logprobs}}
        return {"choices": [choice | ({"token_ids": tokens} if self.token_ids else {})]}


def _error(message):
    return {"error": {"message": message, "code": 400}}


@contextmanager
def recorded_server(port=0):
    """A ``RecordedServer`` and its address; it is gone afterwards."""
    recorded = RecordedServer()
    with listening(recorded, port) as url:
        yield url, recorded


@contextmanager
def listening(responder, port=0):
    """The address at which ``responder.answer`` says what is answered; it is gone afterwards."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self):
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else {}
            status, headers, answer = responder.answer(self.command, self.path, self.headers, body)
            if status == 0:  # cut off
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _respond

        def log_message(self, format, *args):
            pass

    with _Listener(("127.0.0.1", port), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}/v1"
        finally:
            http.shutdown()
            thread.join()


class _Listener(ThreadingHTTPServer):
    """Clients that hang up are no news; answers that nobody waits for hold nothing up."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass
