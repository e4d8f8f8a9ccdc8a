"""Says which GPUs it was given, and takes its time."""

import os
import sys
import time

print("GPUS", os.environ["CUDA_VISIBLE_DEVICES"], "THREADS", os.environ["OMP_NUM_THREADS"], flush=True)
time.sleep(float(sys.argv[1]))
