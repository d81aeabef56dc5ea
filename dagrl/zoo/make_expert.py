"""Make the packaged teacher: ``make demo OUT=RUN``, then ``python -m dagrl.zoo.make_expert --run RUN --out DIR``.

The demo trains the start model with GRPO, 240 steps of seed 0 on two workers. This writes what it left as a packaged
model is written: in bfloat16, with the start model's tokenizer. On one machine two runs give the same weights.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from dagrl.zoo.make_tiny import build_tokenizer, report, save


def make(run: Path, out: Path) -> None:
    """Save the model that is in the folder of a run to ``out``, and print its held-out accuracy."""
    trained = LlamaForCausalLM.from_pretrained(run / "model", dtype=torch.float32)
    save(trained, build_tokenizer(), out)
    report(LlamaForCausalLM.from_pretrained(out, dtype=torch.float32), build_tokenizer())


def main() -> None:
    """Read the command line and make the model."""
    parser = argparse.ArgumentParser(description="Make the packaged teacher of a run of the demo.")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args()
    if not (options.run / "model" / "config.json").is_file():
        parser.error(f"{options.run} holds no model: give the folder of a run that has ended, `make demo OUT=...`")
    make(options.run, options.out)


if __name__ == "__main__":
    main()
