"""Run one case in a forked child with limits, and classify how it ended."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Set

MARKER = "PWNED"  # in all code that a case plants: it must never be compiled
SECRET = "PWNED_SECRET"  # environment variable whose value must never be shown
CANARY = "canary.pickle"  # runs code when unpickled; must not even be opened
INPUTS, TEMPORARY = "inputs", "temporary"  # folders of a case

GOOD = ("ok", "refused")
FINDINGS = (
    *("traceback", "crash", "hang", "memory", "executed", "leftover", "message"),
)

_SECRET_VALUE = "d41d8cd98f00b204"
_EXECUTED = 113  # exit status of a child that was stopped by the audit hook
_RUNS_CODE = re.compile(
    r"os\.(system|exec|fork|forkpty|posix_spawn|spawn|startfile|kill)"
    r"|subprocess\.Popen|pty\.spawn|socket\.(connect|bind|getaddrinfo)|urllib\.Request"
)
_CHANGES_FILES = re.compile(
    r"os\.(remove|rename|rmdir|mkdir|link|symlink|truncate|chmod|chown)|shutil\..*"
)
_UNSAFE_GLOBALS = ("system", "popen", "eval", "exec", "getattr", "__import__", "open")
_NO_MEMORY = re.compile(
    r"MemoryError|bad_alloc|can't allocate memory|not enough memory|DefaultCPUAllocator"
    r"|Unable to allocate|Cannot allocate memory"
)
_TAIL = 2000  # characters of stderr that a result holds


@dataclass(frozen=True)
class Limits:
    """What a case may use."""

    memory: int = 600 << 20  # bytes of address space above those of the parent
    cpu_seconds: int = 5
    # Longer than the CPU time: on a loaded machine a child gets a part of a core.
    wall_seconds: float = 20
    file_bytes: int = 64 << 20


class Outcome(NamedTuple):
    """How a case ended."""

    kind: str  # one of GOOD or FINDINGS
    detail: str  # exception, signal or what else was seen
    frame: str  # innermost frame in the package or an installed library, if known
    stderr: str  # the end of it

    @property
    def found(self) -> bool:
        return self.kind in FINDINGS


class Child:
    """A case that runs: forked, limited, and watched through a pipe."""

    def __init__(
        self,
        folder: Path,
        act: Callable[[], Any],
        *,
        prepare: Callable[[], bytes] = bytes,
        limits: Optional[Limits] = None,
    ):
        """Fork; the child writes its inputs, then calls ``act`` within the limits.

        ``prepare`` is called in the folder of the inputs, before the limits are set,
        and returns what is on stdin. ``act`` returns an exit status.
        """
        self.folder = folder
        self._limits = limits or Limits()
        self._deadline = time.monotonic() + self._limits.wall_seconds
        self._asked_to_stop = False
        self._report = b""
        for part in (INPUTS, TEMPORARY):
            (folder / part).mkdir()
        self.pipe, end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            _run(folder, act, prepare=prepare, limits=self._limits, pipe=end)
        os.close(end)

    def poll(self, seconds: float) -> Optional[Outcome]:
        """The outcome, or None if the child still runs after some seconds."""
        ready, _, _ = select.select([self.pipe], [], [], seconds)
        if ready:
            part = os.read(self.pipe, 1 << 16)
            self._report += part
            if not part:
                return self._outcome()
        if time.monotonic() > self._deadline:
            # The first signal lets the child write its stack.
            stop = signal.SIGKILL if self._asked_to_stop else signal.SIGXCPU
            os.kill(self.pid, stop)
            self._asked_to_stop, self._deadline = True, time.monotonic() + 1
        return None

    def wait(self) -> Outcome:
        """Wait for the end; the child is stopped when it exceeds its limits."""
        while True:
            outcome = self.poll(1)
            if outcome:
                return outcome

    def stop(self) -> None:
        """End the child at once, whatever it does."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _outcome(self) -> Outcome:
        os.close(self.pipe)
        _, state = os.waitpid(self.pid, 0)
        report = json.loads(self._report or b"{}")
        stdout, stderr = (_text(self.folder / name) for name in ("stdout", "stderr"))
        kind, detail = self._kind(state, report, stdout, stderr)
        frame = report.get("frame") or _dumped_frame(_text(self.folder / "stack"))
        return Outcome(kind, detail, frame, stderr[-_TAIL:])

    def _kind(self, state: int, report: Dict[str, Any], stdout: str, stderr: str):
        if "broken" in report:  # a defect of the fuzzer, not of the package
            raise RuntimeError(f"{self.folder}: {report['broken']}")
        if (self.folder / INPUTS / MARKER).exists():
            return "executed", f"{MARKER} was made"
        if "executed" in report:
            return "executed", report["executed"]
        if _SECRET_VALUE in stdout + stderr:
            return "executed", "an environment variable was shown"
        if os.WIFSIGNALED(state):
            number = os.WTERMSIG(state)
            if number in (signal.SIGXCPU, signal.SIGKILL):
                limits = self._limits
                return "hang", (
                    f"used {limits.cpu_seconds} s of CPU time, or did not end within"
                    f" {limits.wall_seconds:g} s"
                )
            if _NO_MEMORY.search(stderr):
                return "memory", stderr.strip().splitlines()[-1][:200]
            return "crash", signal.Signals(number).name
        error = report.get("error")
        if error:
            kind = "memory" if _NO_MEMORY.search(error) else "traceback"
            return kind, error
        if _NO_MEMORY.search(stderr):
            return "memory", _NO_MEMORY.search(stderr)[0]
        status = os.WEXITSTATUS(state)
        if status == 0:
            return "ok", ""
        fault = message_fault(status, stderr)
        if fault:
            return "message", fault
        if report["left"]:
            return "leftover", f"left {', '.join(report['left'])}"
        return "refused", f"exit {status}"


def message_fault(status: int, stderr: str) -> Optional[str]:
    """What is wrong with the message of a refusal, if anything."""
    if status not in (1, 2):
        return f"exit status {status}"
    if "Traceback (most recent call last)" in stderr:
        return "a traceback"
    if not re.search(r"^onelayer-lottery( \S+)?: \S", stderr, re.M):
        return "no line that begins with onelayer-lottery"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", stderr):
        return "a control character"
    if len(stderr) > 4000:
        return f"{len(stderr)} characters"
    return None


def _run(
    folder: Path,
    act: Callable[[], Any],
    *,
    prepare: Callable[[], bytes],
    limits: Limits,
    pipe: int,
) -> NoReturn:
    """The child's life."""
    report: Dict[str, Any] = {}
    status = 1
    try:
        os.chdir(folder / INPUTS)
        try:
            (folder / "stdin").write_bytes(prepare())
        except BaseException:
            report["broken"] = traceback.format_exc()
            raise
        before = _files(folder)
        _redirect(folder)
        _limit(folder, limits)
        _watch(folder, report, pipe)
        try:
            status = act()
        except SystemExit as stop:
            status = stop.code
        if isinstance(status, str):  # as the interpreter does
            print(status, file=sys.stderr)
            status = 1
        report["left"] = sorted(_files(folder) - before)
    except BaseException as error:
        report["error"] = f"{type(error).__name__}: {error}"[:500]
        report["frame"] = _innermost(traceback.extract_tb(error.__traceback__))
        traceback.print_exc()
    finally:
        _end(report, pipe, status if isinstance(status, int) else int(bool(status)))


def _end(report: Dict[str, Any], pipe: int, status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    try:
        os.write(pipe, json.dumps(report).encode())
    finally:
        os._exit(status & 255)


def _redirect(folder: Path) -> None:
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_WRONLY | os.O_CREAT),
        (2, "stderr", os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(folder / name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    # A test runner may have put something else in their place.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)


def _limit(folder: Path, limits: Limits) -> None:
    tempfile.tempdir = str(folder / TEMPORARY)
    os.environ[SECRET] = _SECRET_VALUE
    sys.dont_write_bytecode = True
    dump = os.open(folder / "stack", os.O_WRONLY | os.O_CREAT)
    faulthandler.enable(dump, all_threads=False)
    faulthandler.register(signal.SIGXCPU, dump, all_threads=False, chain=True)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * os.sysconf("SC_PAGE_SIZE") + limits.memory
    seconds = limits.cpu_seconds
    for limit, low, high in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        (resource.RLIMIT_CPU, seconds, seconds + 1),
    ):
        resource.setrlimit(limit, (low, high))


def _watch(folder: Path, report: Dict[str, Any], pipe: int) -> None:
    """Stop the child as soon as it runs code, or touches a file, that it must not."""
    own = str(folder)
    canaries = {"/etc/passwd", str(folder / INPUTS / CANARY)}
    busy = False

    def hook(event: str, arguments: tuple) -> None:
        nonlocal busy
        if busy:
            return
        seen = _forbidden(event, arguments, own, canaries)
        if seen:
            busy = True
            report["executed"] = f"{event}: {seen}"[:300]
            report["frame"] = _innermost(traceback.extract_stack())
            _end(report, pipe, _EXECUTED)

    sys.addaudithook(hook)


def _forbidden(
    event: str, arguments: tuple, own: str, canaries: Set[str]
) -> Optional[str]:
    if event == "open":
        path, _, flags = arguments
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        whole = os.path.abspath(os.fsdecode(path))
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if writes and not whole.startswith((own, "/dev/")):
            return f"writes {whole}"
        return f"reads {whole}" if whole in canaries else None
    if event == "exec":
        return MARKER if _mentions(arguments[0]) else None
    if event == "compile":
        source, filename = arguments
        # ast.parse, as in ast.literal_eval, runs nothing.
        planted = MARKER in str(source) and filename != "<unknown>"
        return f"{source!s}" if planted else None
    if event == "pickle.find_class":
        return ".".join(arguments) if arguments[1] in _UNSAFE_GLOBALS else None
    if _RUNS_CODE.fullmatch(event):
        return repr(arguments)
    if _CHANGES_FILES.fullmatch(event):
        paths = [a for a in arguments[:2] if isinstance(a, (str, bytes, os.PathLike))]
        wholes = [os.path.abspath(os.fsdecode(path)) for path in paths]
        return next((path for path in wholes if not path.startswith(own)), None)
    return None


def _mentions(code: Any) -> bool:
    """Whether code names the marker, anywhere in it."""
    if hasattr(code, "co_consts"):
        return any(map(_mentions, (*code.co_names, *code.co_consts)))
    if isinstance(code, (tuple, frozenset)):
        return any(map(_mentions, code))
    return isinstance(code, (str, bytes)) and MARKER in str(code)


def _files(folder: Path) -> Set[str]:
    return {
        str(path.relative_to(folder))
        for part in (INPUTS, TEMPORARY)
        for path in (folder / part).rglob("*")
        if path.is_file()
    }


def _innermost(frames: List[traceback.FrameSummary]) -> str:
    """The last frame outside the standard library and this file."""
    for frame in reversed(frames):
        if _is_telling(frame.filename):
            return f"{_short(frame.filename)}:{frame.lineno} {frame.name}"
    return ""


def _dumped_frame(dump: str) -> str:
    """The innermost telling frame in what faulthandler wrote."""
    found = re.findall(r'File "(.+?)", line (\d+) in (\S+)', dump)
    telling = (f"{_short(f)}:{n} {name}" for f, n, name in found if _is_telling(f))
    return next(telling, "")


def _is_telling(path: str) -> bool:
    return "site-packages" in path or "/onelayer_lottery/" in path


def _short(path: str) -> str:
    start = path.rfind("/onelayer_lottery/")
    return path[start + 1 :] if start >= 0 else path.rpartition("site-packages/")[2]


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return file.read(1 << 20).decode("utf-8", "replace")
