"""Which files are not for this environment: the steps of CI that have theirs run them."""

from kernels_pallas.aot import gpu, tpu
from kernels_pallas.gpu.blocks import HAS_MOSAIC

NEEDED = {
    "test_aot_tpu.py": tpu.available(),  # make aot-check
    "test_aot_gpu.py": gpu.available(),  # make aot-check
    "test_gpu_mosaic.py": HAS_MOSAIC,  # make smoke
}
collect_ignore = [name for name, there in NEEDED.items() if not there]
