"""A stand-in for SGLang's server: its documented protocol, tokens drawn from the embedded model by our own code."""

import math
import random
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from rollout_engines import tokenizer
from rollout_servers import listening, start
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dagrl.engines.sampling import sample_tokens, token_uniforms
from dagrl.engines.weights import TrainedWeights
from dagrl.zoo import model_folder

CONTEXT = 128
#: Below it a temperature is greedy.
GREEDY = 1e-6
#: What a question may hold here; the server itself passes over what it does not know.
FIELDS = {
    *("prompt", "max_tokens", "seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "stop", "no_stop_trim", "stop_token_ids", "ignore_eos"),
    *("logprobs", "return_token_ids"),
}


def tiny():
    model = AutoModelForCausalLM.from_pretrained(model_folder("tiny"), dtype=torch.float32)
    return model.eval().requires_grad_(False)


def sync(engine, model, version=1):
    engine.load_weights(TrainedWeights(model, dtype=torch.float32), version)


def ready(urls, model, **options):
    """An engine that has its first weights."""
    engine = start(urls, model, context=CONTEXT, **options)
    sync(engine, model)
    return engine


class SglangServer:
    """Answers as a server of SGLang for ``zoo:tiny``; a test changes how it was started.

    ``rows`` are the questions for more than one token that were asked at a temperature below the probe's, ``updates``
    the calls for new weights, ``aborts`` how many of the next rows are broken off.
    """

    def __init__(self):
        self.deterministic = True
        self.original_logprobs = False
        self.token_ids = True
        self.takes_weights = True
        self.eos = {2}
        self.aborts = 0
        self.rows = []
        self.updates = []
        self._texts = tokenizer()
        self._lock = threading.Lock()
        self._closed = False
        self.start()

    def start(self):
        """Begin, or begin again, with the weights on its disk."""
        self.model = tiny()
        self.version = "default"

    def close(self):
        """Draw and load nothing more that nobody waits for: a thread in torch aborts a process that ends."""
        with self._lock:
            self._closed = True

    def answer(self, method, path, headers, body):
        """(status, headers, answer) of a request."""
        match method, path:
            case "GET", "/v1/models":
                card = {"id": "tiny", "owned_by": "sglang", "root": "tiny", "parent": None, "max_model_len": CONTEXT}
                return 200, {}, {"object": "list", "data": [card]}
            case "GET", "/server_info":
                options = {"enable_deterministic_inference": self.deterministic, "max_req_input_len": CONTEXT - 6}
                return 200, {}, {**options, "version": "0.0"}
            case "GET", "/model_info":
                return 200, {}, {"model_path": "tiny", "weight_version": self.version}
            case "POST", "/v1/completions":
                return self._unless_closed(self._completion, body)
            case "POST", "/update_weights_from_disk" if self.takes_weights:
                return self._unless_closed(self._update, body)
        return 404, {}, {"detail": "Not Found"}

    def _unless_closed(self, work, body):
        with self._lock:
            return (503, {}, "closed") if self._closed else work(body)

    def _update(self, body):
        if "model_path" not in body:
            return _refusal("1 validation error: model_path: Field required")
        self.updates.append(body)
        state = {name: each for path in Path(body["model_path"]).glob("*.safetensors") for name, each in _file(path)}
        try:
            self.model.load_state_dict(state)
        except RuntimeError as error:
            return 400, {}, {"success": False, "message": f"Failed to update weights: {str(error).splitlines()[1]}"}
        self.version = body.get("weight_version") or self.version
        return 200, {}, {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    def _completion(self, body):
        problem = self._problem(body)
        if problem is not None:
            return _refusal(problem)
        if self.deterministic and not -(2**31) <= body.get("seed", 42) < 2**31:
            return 500, {}, "value cannot be converted to type int32 without overflow"
        if body["max_tokens"] > 1 and body["temperature"] < 1e4:
            self.rows.append(body)
        tokens, logprobs, reason, matched = self._drawn(body)
        if self.aborts > 0:
            self.aborts -= 1
            tokens, logprobs, reason, matched = tokens[:1], logprobs[:1], "abort", None
        choice = {"index": 0, "text": self._text(body, tokens, matched), "finish_reason": reason}
        choice |= {"matched_stop": matched, "logprobs": None}
        if body.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": logprobs, "top_logprobs": [], "text_offset": [-1] * len(tokens)}
        if self.token_ids and body.get("return_token_ids"):
            choice["token_ids"] = tokens
        return 200, {}, {"choices": [choice], "metadata": {"weight_version": self.version}}

    def _problem(self, body):
        """Why the server would refuse a question."""
        prompt, vocab_size = body["prompt"], self.model.config.vocab_size
        temperature, top_k, top_p = body.get("temperature", 1.0), body.get("top_k", -1), body.get("top_p", 1.0)
        rules = [
            ("Prompt cannot be empty", prompt),
            ("max_tokens must be positive", body["max_tokens"] > 0),
            (f"{prompt} contains values greater than the vocab size", max(prompt, default=0) < vocab_size),
            (f"top_k must be -1 (disable) or at least 1, got {top_k}.", top_k == -1 or top_k >= 1),
            (f"top_p must be in (0, 1], got {top_p}.", 0 < top_p <= 1),
            ("temperature must be a non-negative finite number", math.isfinite(temperature) and temperature >= 0),
            ("Input length exceeds the maximum allowed length", len(prompt) < CONTEXT - 6),
            ("Requested token count exceeds the context length", len(prompt) + body["max_tokens"] <= CONTEXT),
        ]
        return next((message for message, holds in rules if not holds), None)

    def _drawn(self, body):
        """Tokens, log-probs, and why they end, at what."""
        tokens, logprobs = [], []
        while True:
            logits = self.model(input_ids=torch.tensor([body["prompt"] + tokens]), use_cache=False).logits[:, -1]
            if not bool(logits.isfinite().all()):
                return [*tokens, body["stop_token_ids"][0]], [*logprobs, -1.0], "stop", "NaN happened"
            token, logprob = self._next(body, logits, len(body["prompt"]) + len(tokens))
            tokens.append(token)
            logprobs.append(logprob)
            reason, matched = self._end(body, tokens)
            if reason is not None:
                return tokens, logprobs, reason, matched

    def _next(self, body, logits, position):
        """A token by its seed, if seeds count, and its log-prob after the temperature, before top-k and top-p."""
        seed = body.get("seed", 42) if self.deterministic else random.getrandbits(31)
        greedy = body["temperature"] < GREEDY
        temperature = 0.0 if greedy else body["temperature"]
        filters = {"top_p": body.get("top_p", 1.0), "top_k": max(0, body.get("top_k", -1))}
        token, _ = sample_tokens(logits, token_uniforms(torch.tensor([seed]), position), temperature, **filters)
        scale = 1.0 if greedy or self.original_logprobs else temperature
        return int(token), float((logits / scale).log_softmax(-1)[0, token])

    def _end(self, body, tokens):
        """The length comes first, then tokens, then texts, which are looked for in the last tokens only."""
        if len(tokens) >= body["max_tokens"]:
            return "length", None
        if not body.get("ignore_eos") and tokens[-1] in {*body.get("stop_token_ids", ()), *self.eos}:
            return "stop", tokens[-1]
        stops = body.get("stop", [])
        longest = max((len(self._texts.encode(stop, add_special_tokens=False)) for stop in stops), default=0)
        tail = self._texts.decode(tokens[-(longest + 1) :])
        found = [stop for stop in stops if stop in tail]
        return ("stop", found[0]) if found else (None, None)

    def _text(self, body, tokens, matched):
        text = self._texts.decode(tokens, skip_special_tokens=True)
        trims = isinstance(matched, str) and matched in text and not body.get("no_stop_trim")
        return text[: text.index(matched)] if trims else text


@contextmanager
def sglang_server():
    """The address of a ``SglangServer``, and itself."""
    with closing(SglangServer()) as server, listening(server) as url:
        yield url, server


def _file(path):
    return load_file(path).items()


def _refusal(message):
    return 400, {}, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
