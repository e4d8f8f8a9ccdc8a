"""Prints what a program sees of itself as one JSON object, then ends in the way its first argument says."""

import atexit
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any


def seen() -> dict[str, Any]:
    """What `python TARGET ARGS` decides about a program."""
    main = sys.modules["__main__"]
    spec = main.__spec__
    return {
        "argv": sys.argv,
        "path": sys.path,
        "file": main.__file__,
        "name": __name__,
        "package": main.__package__,
        "spec": spec and [spec.name, spec.origin, spec.parent],
        "loader": type(main.__loader__).__name__,
        "globals": sorted(name for name in vars(main) if name.startswith("__")),
        "is_main": main.__dict__ is globals(),
        "cwd": os.getcwd(),
        "threads": threading.active_count(),
        "modules": sorted(name for name in sys.modules if name in ("journal", "hooks", "target", "redact", "errors")),
        "environ": sorted(os.environ),
    }


def square(value: int) -> int:
    return value * value


def in_child(method: str) -> list[int]:
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.map(square, range(3))


def late() -> None:
    time.sleep(0.2)
    print("a thread that outlives main")


def fail() -> None:
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("then") from None


def end(how: str) -> None:
    if how == "string":
        sys.exit("a last word")
    elif how == "raise":
        fail()
    elif how == "interrupt":
        raise KeyboardInterrupt
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "thread":
        threading.Thread(target=late).start()
    elif how in ("spawn", "fork"):
        print(in_child(how))
    elif how == "none":
        sys.exit(None)
    elif how.isdigit():
        sys.exit(int(how))


if __name__ == "__main__":
    print(json.dumps(seen()))
    atexit.register(print, "atexit ran")
    end(sys.argv[1] if len(sys.argv) > 1 else "")
