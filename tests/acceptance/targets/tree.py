"""A program that does not want to end: ignores SIGTERM, and has a child in a session of its own and a daemon.

`tree.py TOKEN SECONDS`: every process carries TOKEN in its command line."""

import os
import signal
import subprocess
import sys
import time

TOKEN, SECONDS = sys.argv[1], sys.argv[2]
STUBBORN = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(float(sys.argv[2]))"


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    command = [sys.executable, "-c", STUBBORN, TOKEN, SECONDS]
    subprocess.Popen(command, start_new_session=True)
    if os.fork() == 0:  # a daemon: its parent ends at once
        os.setsid()
        if os.fork() == 0:
            os.execv(command[0], command)
        os._exit(0)
    print("tree stands", flush=True)
    time.sleep(float(SECONDS))


main()
