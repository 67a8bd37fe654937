"""Run Python programs as forks of one process that has imported torch and fairseq.

Starting fairseq takes five seconds of CPU time, nearly all of it imports. ``warm``
gives stand-ins for ``python`` and the console scripts. A stand-in hands its arguments,
folder, environment and standard streams to a server, which forks and runs the real
script in the fork: nothing is shared with other tests, output and exit status are
those of a process of its own. Killing a stand-in kills what it runs. Tests of other
signals, of resource limits and of the start itself run the real commands.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import logging
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache, partial
from pathlib import Path
from typing import Callable, List, Optional

REAL = Path(sys.executable).parent
SCRIPTS = """
    fairseq-eval-lm fairseq-generate fairseq-hydra-train fairseq-interactive
    fairseq-preprocess
    fairseq-train fairseq-validate onelayer-lottery
""".split()

# Runs without site-packages, and so starts in some hundredths of a second.
STAND_IN = """#!{python} -IS
import array, json, os, socket, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
real = os.path.join({real!r}, name)
if name != "python":
    program = [real, *words]
elif words and (words[0] == "-m" or words[0].endswith(".py")):
    program = words
else:
    os.execv(real, [real, *words])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    streams = array.array("i", [0, 1, 2])
    server.sendmsg([b" "], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    request = [program, os.getcwd(), dict(os.environ)]
    server.sendall(json.dumps(request).encode() + b"\\n")
    status = int(server.recv(16) or 9)
if os.WIFSIGNALED(status):
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
"""


def real(name: str) -> Path:
    """The path of a console script as it was installed."""
    return REAL / name


def warm(name: str) -> Path:
    """The path of the stand-in for ``python`` or for a console script."""
    return _started() / "bin" / name


@lru_cache(maxsize=None)
def _started() -> Path:
    """Start the server of this test run; it ends when its standard input does."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    (folder / "bin").mkdir()
    address = str(folder / "server")
    text = STAND_IN.format(python=sys.executable, real=str(REAL), address=address)
    for name in ("python", *SCRIPTS):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    for path in REAL.iterdir():  # other scripts are found beside them as ever
        if path.name not in SCRIPTS and not path.name.startswith("python"):
            (folder / "bin" / path.name).symlink_to(path)
    server = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    atexit.register(server.stdin.close)
    assert server.stdout.readline() == b"ready\n"
    return folder


def _serve(folder: Path) -> List[str]:
    """Fork for each request; return only in such a fork, with the program to run."""
    import fairseq.trainer  # noqa: F401
    import sacrebleu  # noqa: F401

    with contextlib.suppress(ImportError):  # torch 2, by the first step of an optimizer
        import torch._dynamo  # noqa: F401

    gc.collect()
    gc.freeze()  # or each fork would copy the memory of all that is imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "server"))
        listener.listen(16)
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([listener, 0], [], [])
            if 0 in ready:
                os._exit(0)  # the tests are over
            client, _ = listener.accept()
            if os.fork() == 0:
                break
            client.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    program = _run(client)
    sys.executable = str(folder / "bin" / "python")
    return program


def _run(client: socket.socket) -> List[str]:
    """Fork for the program and stay behind to tell its client how it ends."""
    _, ancillary, _, _ = client.recvmsg(1, socket.CMSG_LEN(12))
    streams = array.array("i", ancillary[0][2])
    with client.makefile("rb") as file:
        program, folder, environment = json.loads(file.readline())
    ends, held = os.pipe()  # the program's end is seen as the end of this pipe
    child = os.fork()
    if child == 0:
        os.setsid()
        client.close()
        os.close(ends)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        return program
    os.close(held)
    for stream in streams:
        os.close(stream)
    ready, _, _ = select.select([client, ends], [], [])
    if ends not in ready:  # the stand-in was killed
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        client.sendall(str(status).encode())
    os._exit(0)


def _as_started(program: List[str]) -> Optional[str]:
    """Make the interpreter's state that of a start; return the name of a module."""
    module = program[1] if program[0] == "-m" else None
    sys.argv = program[1:] if module else program
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = os.getcwd() if module else str(Path(program[0]).resolve().parent)
    sys.path[:1] = [first, *(entry for entry in path if entry)]
    if "fairseq-train" in program[0] or module == "fairseq_cli.train":
        # It alone sets up logging before it imports fairseq, which then does not.
        logging.root.handlers.clear()
    return module


def _end_with(run: Callable[[], object]) -> None:
    """Run and end as the interpreter does, but leave all memory to the system.

    To free what was imported would take half a second.
    """
    status = 0
    try:
        run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    PROGRAM = _serve(Path(sys.argv[1]))
    MODULE = _as_started(PROGRAM)
    if MODULE:
        _end_with(
            partial(runpy.run_module, MODULE, run_name="__main__", alter_sys=True)
        )
    else:
        _end_with(partial(runpy.run_path, PROGRAM[0], run_name="__main__"))
