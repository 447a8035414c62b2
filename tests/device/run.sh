#!/bin/sh
# What only a GPU can show, in under five minutes: builds the CUDA kernels, tests every op on the GPU, times them.
# Needs torch with CUDA, an nvcc of the same CUDA version, and pytest with hypothesis. Run it from anywhere:
#     tests/device/run.sh [python]
set -eu
cd "$(dirname "$0")/../.."
python=${1:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" ASR_KERNELS=auto

echo "== building"
"$python" -c "import torch; assert torch.cuda.is_available(), 'no GPU that torch can use'; print(torch.cuda.get_device_name())"
"$python" -c "from asr.kernels import build; print(build.build(limit=240, cuda=True))"

echo "== tests"
"$python" -m pytest -q --maxfail=20 -p no:cacheprovider -k "cuda or test_device" \
    tests/kernels/test_linear_kernel.py tests/kernels/test_causal_kernel.py tests/kernels/test_lsh_kernel.py \
    tests/device/test_device.py && status=0 || status=$?

echo "== times"
"$python" tests/device/timing.py
exit "$status"
