"""Runs a program in this process exactly as `python TARGET ARGS` would: same argv, sys.path[0], `__main__`, exit code.

Follows what CPython's Modules/main.c does for a file, a directory or zip with a `__main__.py`, and `-m`."""

import builtins
import importlib.machinery
import importlib.util
import io
import marshal
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any


def run_target(target: str, arguments: Sequence[str], *, module: bool) -> None:
    """Run a file, directory, zip, or (`module`) a module as `__main__`; whatever it raises comes out, SystemExit too.

    sys.path[0] must be the probe's own folder, put there by the interpreter, unless safe_path or isolated mode is on.
    """
    fresh = _fresh_main()
    if module:
        _set_path0(os.getcwd())
        sys.argv = ["-m", *arguments]  # what code sees that runs while the module is looked for
        _run_as_main(target, alter_argv=True)
        return
    sys.argv = [target, *arguments]
    absolute = _absolute(target)
    if pkgutil.get_importer(absolute) is not None:
        _set_path0(absolute, always=True)
        _run_as_main("__main__", alter_argv=False)
    else:
        _set_path0(os.path.dirname(os.path.realpath(target)))
        _run_file(target, absolute, fresh)


def _run_as_main(name: str, *, alter_argv: bool) -> None:
    # Private, but it is what the interpreter itself calls by this name for `-m`, directories and zips, in 3.10 to 3.14:
    # the messages, the exit code and the traceback's first frames are then the interpreter's own.
    run: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
    run(name, alter_argv)


def _run_file(target: str, absolute: str, main: types.ModuleType) -> None:
    try:
        with io.open_code(absolute) as file:
            content = file.read()
    except OSError as error:
        text = f"{sys.executable}: can't open file {absolute!r}: [Errno {error.errno}] {error.strerror}"
        print(text, file=sys.stderr)
        raise SystemExit(2) from error
    compiled = content[:4] == importlib.util.MAGIC_NUMBER
    loader: Any = importlib.machinery.SourcelessFileLoader if compiled else importlib.machinery.SourceFileLoader
    main.__dict__.update(__file__=absolute, __cached__=None, __loader__=loader("__main__", absolute))
    code = marshal.loads(content[16:]) if compiled else compile(content, absolute, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _fresh_main() -> types.ModuleType:
    """A `__main__` as the interpreter makes it before it runs anything; the probe's own one goes."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    main.__dict__["__loader__"] = importlib.machinery.BuiltinImporter
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main


def _set_path0(folder: str, *, always: bool = False) -> None:
    """Put `folder` where the interpreter has put the probe's; in safe_path mode only a zip or directory has a place."""
    own = bool(sys.path) and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__))
    if own:
        del sys.path[0]
    if own or always:
        sys.path.insert(0, folder)


def _absolute(path: str) -> str:
    """As the interpreter does it: joined to the working directory, not normalised, but for a bare `.` from 3.11 on."""
    if path == "." and sys.version_info >= (3, 11):
        return os.getcwd()
    return os.path.join(os.getcwd(), path)
