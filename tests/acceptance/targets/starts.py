"""Starts training as programs do that start it themselves.

`starts.py spawn OUT [FATE]`: elastic.py by torch.multiprocessing, two ranks; `itself OUT [FATE]`: in this very process;
`driver FILE ARGS...`: in a subprocess, once a helper has done its part."""

import importlib
import socket
import subprocess
import sys
from typing import Any


def spawn(out: str, fate: str = "") -> None:
    import torch.multiprocessing

    elastic: Any = importlib.import_module("elastic")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torch.multiprocessing.spawn(elastic.spawned, args=(out, port, fate), nprocs=2)


def driver(*command: str) -> None:
    helper = subprocess.run([sys.executable, "-c", "print('a helper')"], check=True, capture_output=True, text=True)
    print(helper.stdout, end="", flush=True)
    sys.exit(subprocess.run([sys.executable, *command]).returncode)


def itself(out: str, fate: str = "") -> None:
    elastic: Any = importlib.import_module("elastic")
    elastic.train(out, 0, 1, fate)


if __name__ == "__main__":
    how, *arguments = sys.argv[1:]
    hows: dict[str, Any] = {"spawn": spawn, "driver": driver, "itself": itself}
    hows[how](*arguments)
