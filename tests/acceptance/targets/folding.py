"""As fms-hf-tuning's build/accelerate_launch.py, which is in no wheel: elastic ranks whose exit codes all become 203.

`folding.py ARGS...`: two ranks of its trainer; rank 1 is asked for an embedding that no memory holds."""

import os
import socket
import subprocess
import sys
import time


def main(arguments: list[str]) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = []
    for rank in ("0", "1"):
        more = ["--embedding_size_multiple_of", "1000000000000"] if rank == "1" else []
        command = [sys.executable, "-m", "tuning.sft_trainer", *arguments, *more]
        ranks.append(subprocess.Popen(command, env={**os.environ, **world, "RANK": rank, "LOCAL_RANK": rank}))
    while all(rank.poll() is None for rank in ranks):
        time.sleep(0.1)
    failed = any(rank.poll() for rank in ranks)
    for process in ranks:
        if failed:
            process.terminate()
        process.wait()
    return 203 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
