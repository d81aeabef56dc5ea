#!/usr/bin/env bash
# What only a CUDA device can show, without ray and vllm: rollout, bf16, log-prob memory, gradients, the demo in one
# process. Skips itself where there is no such device; a table comes last, in less than 6 minutes. PYTHON is the
# interpreter to use.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export PYTHONPATH="$PWD:$PWD/tests"
exec timeout 355 "$PYTHON" -m tests.gpu.check "$@"
