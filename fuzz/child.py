"""Run cases in a forked child with limits, and classify how each ended."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
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
from typing import (
    Any,
    Callable,
    Dict,
    List,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Set,
    Tuple,
)

MARKER = "PWNED"  # in all code that a case plants: it must never be compiled
SECRET = "PWNED_SECRET"  # environment variable whose value must never be shown
CANARY = "canary.pickle"  # runs code when unpickled; must not even be opened
INPUTS, TEMPORARY = "inputs", "temporary"  # folders of a case

GOOD = ("ok", "refused")
FINDINGS = (
    *("traceback", "crash", "hang", "memory", "executed", "leftover", "message"),
)

_SECRET_VALUE = "d41d8cd98f00b204"
_STACK_FILE = 199  # file descriptor of what faulthandler writes
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
_CLEAR_REFS, _RESET_PEAK = Path("/proc/self/clear_refs"), "5"  # of VmHWM
_TAIL = 2000  # characters of stderr that a result holds


@dataclass(frozen=True)
class Limits:
    """What a case may use."""

    # Bytes of physical memory that a case may add. The models of the corpus are small,
    # so this is what SECURITY.md promises.
    resident: int = 200 << 20
    memory: int = 600 << 20  # bytes of address space above those of the parent
    cpu_seconds: int = 5
    # Much longer than the CPU time: on a loaded machine a child gets a small part of a
    # core.
    wall_seconds: float = 120
    file_bytes: int = 64 << 20


class Outcome(NamedTuple):
    """How a case ended."""

    kind: str  # one of GOOD or FINDINGS
    detail: str  # exception, signal or what else was seen
    frame: str  # innermost frame in the package or an installed library, if known
    stderr: str  # the end of it
    resident: int = 0  # bytes of physical memory that the case added, if it ended

    @property
    def found(self) -> bool:
        return self.kind in FINDINGS


class Work(NamedTuple):
    """A case to run: it has a folder of its own, which must exist and be empty."""

    folder: Path
    act: Callable[[], Any]  # returns an exit status
    # Called in the folder of the inputs, before the limits are set; returns stdin.
    prepare: Callable[[], bytes] = bytes


class Child:
    """A forked process that runs cases one after the other, limited and watched.

    Forking costs more than most cases take, so that one process runs many. It ends
    early with a case that crashes, hangs or does what it must not: ``left`` then has
    the cases that it did not begin, for another child.
    """

    def __init__(self, work: Sequence[Work], *, limits: Optional[Limits] = None):
        self.left: List[Work] = list(work)
        self._limits = limits or Limits()
        self._running: Optional[Work] = None
        self._asked_to_stop = False
        self._lines = b""
        self._begin()
        self.pipe, end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.pipe)
            _run_all(work, limits=self._limits, pipe=end)
        os.close(end)

    def poll(self, seconds: float) -> Optional[Tuple[Work, Outcome]]:
        """The next case that ended, or None if none did within some seconds."""
        if b"\n" not in self._lines and self._running:
            ready, _, _ = select.select([self.pipe], [], [], seconds)
            part = os.read(self.pipe, 1 << 16) if ready else None
            if part == b"":
                return self._died()
            self._lines += part or b""
        if b"\n" in self._lines:
            line, _, self._lines = self._lines.partition(b"\n")
            return self._ended(json.loads(line))
        if time.monotonic() > self._deadline:
            # The first signal lets the child write its stack.
            stop = signal.SIGKILL if self._asked_to_stop else signal.SIGXCPU
            os.kill(self.pid, stop)
            self._asked_to_stop, self._deadline = True, time.monotonic() + 1
        return None

    @property
    def ended(self) -> bool:
        return self._running is None

    def stop(self) -> None:
        """End the child at once, whatever it does."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _begin(self) -> None:
        """Note which case the child is about to run."""
        self._running = self.left.pop(0) if self.left else None
        self._deadline = time.monotonic() + self._limits.wall_seconds

    def _ended(self, report: Dict[str, Any]) -> Tuple[Work, Outcome]:
        work = self._running
        last = report["last"]
        if last:
            os.close(self.pipe)
            os.waitpid(self.pid, 0)
            self._running = None
        else:
            self._begin()
        return work, self._outcome(work, report, None)

    def _died(self) -> Tuple[Work, Outcome]:
        os.close(self.pipe)
        _, state = os.waitpid(self.pid, 0)
        work, self._running = self._running, None
        number = os.WTERMSIG(state) if os.WIFSIGNALED(state) else None
        report = {"status": os.WEXITSTATUS(state), "left": []}
        return work, self._outcome(work, report, number)

    def _outcome(
        self, work: Work, report: Dict[str, Any], signal_number: Optional[int]
    ) -> Outcome:
        folder = work.folder
        stdout, stderr = (_text(folder / name) for name in ("stdout", "stderr"))
        kind, detail = self._kind(folder, report, signal_number, stdout, stderr)
        frame = report.get("frame") or _dumped_frame(_text(folder / "stack"))
        return Outcome(kind, detail, frame, stderr[-_TAIL:], report.get("resident", 0))

    def _kind(
        self,
        folder: Path,
        report: Dict[str, Any],
        signal_number: Optional[int],
        stdout: str,
        stderr: str,
    ) -> Tuple[str, str]:
        if "broken" in report:  # a defect of the fuzzer, not of the package
            raise RuntimeError(f"{folder}: {report['broken']}")
        if (folder / INPUTS / MARKER).exists():
            return "executed", f"{MARKER} was made"
        if "executed" in report:
            return "executed", report["executed"]
        if _SECRET_VALUE in stdout + stderr:
            return "executed", "an environment variable was shown"
        if signal_number is not None:
            if signal_number in (signal.SIGXCPU, signal.SIGKILL):
                limits = self._limits
                return "hang", (
                    f"used {limits.cpu_seconds} s of CPU time, or did not end within"
                    f" {limits.wall_seconds:g} s"
                )
            if _NO_MEMORY.search(stderr):
                return "memory", stderr.strip().splitlines()[-1][:200]
            return "crash", signal.Signals(signal_number).name
        error = report.get("error")
        if error:
            kind = "memory" if _NO_MEMORY.search(error) else "traceback"
            return kind, error
        if _NO_MEMORY.search(stderr):
            return "memory", _NO_MEMORY.search(stderr)[0]
        resident = report.get("resident", 0)
        if resident > self._limits.resident:
            return "memory", f"{resident >> 20} MB resident"
        status = report["status"]
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


def run_alone(
    folder: Path,
    act: Callable[[], Any],
    *,
    prepare: Callable[[], bytes] = bytes,
    limits: Optional[Limits] = None,
) -> Outcome:
    """Run one case in a child of its own, and wait for its end."""
    child = Child([Work(folder, act, prepare)], limits=limits)
    while True:
        ended = child.poll(1)
        if ended:
            return ended[1]


def _run_all(work: Sequence[Work], *, limits: Limits, pipe: int) -> NoReturn:
    """The child's life: a line of JSON on the pipe for each case that ended."""
    watch = _Watch(pipe)
    sys.addaudithook(watch)
    try:
        for number, (folder, act, prepare) in enumerate(work, start=1):
            report = _run(folder, act, prepare=prepare, limits=limits, watch=watch)
            last = number == len(work) or "broken" in report
            _send({**report, "last": last}, pipe)
            if last:
                break
    finally:
        os._exit(0)


def _run(
    folder: Path,
    act: Callable[[], Any],
    *,
    prepare: Callable[[], bytes],
    limits: Limits,
    watch: _Watch,
) -> Dict[str, Any]:
    report: Dict[str, Any] = {"left": []}
    status: Any = 1
    watch.folder = None  # what is prepared is the fuzzer's own doing
    try:
        for part in (INPUTS, TEMPORARY):
            (folder / part).mkdir()
        os.chdir(folder / INPUTS)
        (folder / "stdin").write_bytes(prepare())
        before = _files(folder)
        _redirect(folder)
        _limit(folder, limits)
        _CLEAR_REFS.write_text(_RESET_PEAK)
        before_resident = _resident("VmRSS")
    except BaseException:
        return {"broken": traceback.format_exc()}
    watch.folder = folder
    try:
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
    watch.folder = None
    report["resident"] = _resident("VmHWM") - before_resident
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    report["status"] = (status if isinstance(status, int) else int(bool(status))) & 255
    return report


def _resident(key: str) -> int:
    """Bytes of physical memory: now (VmRSS), or the most since the reset (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{key}:\s+(\d+) kB$", status, re.M)[1]) << 10


def _send(report: Dict[str, Any], pipe: int) -> None:
    os.write(pipe, json.dumps(report).encode() + b"\n")


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
    with open(folder / "stack", "wb") as file:
        dump = os.dup2(file.fileno(), _STACK_FILE)
    faulthandler.enable(dump, all_threads=False)
    faulthandler.register(signal.SIGXCPU, dump, all_threads=False, chain=True)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * os.sysconf("SC_PAGE_SIZE") + limits.memory
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + limits.cpu_seconds
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_CPU, seconds),
    ):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (most, hard))


class _Watch:
    """Stops the child as soon as it runs code, or touches a file, that it must not."""

    def __init__(self, pipe: int):
        self.folder: Optional[Path] = None  # of the case that runs
        self._pipe = pipe

    def __call__(self, event: str, arguments: tuple) -> None:
        folder = self.folder
        if folder is None:
            return
        canaries = {"/etc/passwd", str(folder / INPUTS / CANARY)}
        seen = _forbidden(event, arguments, str(folder), canaries)
        if seen:
            self.folder = None
            frame = _innermost(traceback.extract_stack())
            report = {"executed": f"{event}: {seen}"[:300], "frame": frame}
            _send({**report, "last": True}, self._pipe)
            os._exit(0)


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
