"""Engines that draw responses, behind one protocol: `hf` (our own loop), `vllm` and `server` (HTTP).

vLLM is imported here alone. They take token ids and give token ids; chat templates, texts and rewards are not theirs.
"""
