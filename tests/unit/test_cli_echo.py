"""Copying a growing file to a descriptor."""

import os
import threading
from pathlib import Path

from harness.cli.echo import Echo


def test_what_is_written_arrives_while_the_file_grows(tmp_path: Path) -> None:
    source = tmp_path / "stdout.log"
    read, write = os.pipe()
    echo = Echo((source, write), (tmp_path / "absent", write))
    echo.start()
    with source.open("wb", buffering=0) as file:  # only now: the rank starts later than the thread
        file.write(b"half a li")
        assert os.read(read, 100) == b"half a li"
        file.write(b"ne \xff\n")
        assert os.read(read, 100) == b"ne \xff\n"
        file.write(b"the last")
    echo.finish()
    assert os.read(read, 100) == b"the last"
    os.close(read)
    os.close(write)


def test_more_than_a_pipe_holds(tmp_path: Path) -> None:
    source = tmp_path / "stdout.log"
    source.write_bytes(bytes(range(256)) * 4096)
    read, write = os.pipe()
    os.set_blocking(write, False)
    got = bytearray()

    def reader() -> None:
        while data := os.read(read, 1 << 16):
            got.extend(data)

    thread = threading.Thread(target=reader)
    thread.start()
    echo = Echo((source, write))
    echo.start()
    echo.finish()
    os.close(write)
    thread.join()
    os.close(read)
    assert bytes(got) == source.read_bytes()


def test_a_reader_that_has_gone_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_bytes(b"x" * 100)
    (tmp_path / "stderr.log").write_bytes(b"still there")
    gone, broken = os.pipe()
    os.close(gone)
    read, write = os.pipe()
    echo = Echo((tmp_path / "stdout.log", broken), (tmp_path / "stderr.log", write))
    echo.start()
    echo.finish()
    assert os.read(read, 100) == b"still there"
    for descriptor in (broken, read, write):
        os.close(descriptor)
