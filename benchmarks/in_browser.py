"""The page of a ticket in browsers: does it translate as `translate`, and how fast?

    python benchmarks/in_browser.py model.ticket test.de

All lines are put into the page's text box at once, as by a paste. What the page then
shows is compared with what ``onelayer-lottery translate`` prints, for both of its
engines. CPU time is that of all processes of the browser, from the paste to the last
translation, display included. It is read from /proc: Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Tuple

from browsers import BROWSERS, Browser, missing, started
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from onelayer_lottery.page.build import page
from onelayer_lottery.page.moses import moses_tables
from onelayer_lottery.ticket.format import read_ticket

ENGINES = ("fairseq", "ctranslate2")
PASTE = """
    const box = document.getElementById('source');
    box.focus();
    box.select();
    document.execCommand('insertText', false, arguments[0]);
    return box.value;
"""
SHOWN = """
    const output = document.getElementById('output');
    return [output.classList.contains('stale'), output.children.length];
"""
LINES = "return [...document.querySelectorAll('#output li')].map(li => li.textContent);"
MESSAGE = "return document.getElementById('message').textContent;"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ticket", type=Path)
    parser.add_argument("text", type=Path, help="raw text, one sentence a line")
    parser.add_argument("--browsers", nargs="+", choices=BROWSERS, default=BROWSERS)
    parser.add_argument("--beams", nargs="+", type=int, default=(5, 1), metavar="N")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    options = parser.parse_args()
    lines = options.text.read_text(encoding="utf-8").splitlines()
    expected = {
        (engine, beam): translate(options.ticket, lines, engine, beam)
        for beam in options.beams
        for engine in options.engines
    }
    for name in options.browsers:
        reason = missing(name)
        if reason:
            print(f"{name} is left out, {reason}")
            continue
        with started(name) as browser, tempfile.TemporaryDirectory() as folder:
            version = browser.driver.capabilities["browserVersion"]
            print(f"{name} {version}: {opened(browser, options.ticket, Path(folder))}")
            for beam in options.beams:
                found, seconds = translations(browser, lines, beam)
                report(lines, found, seconds, expected, beam)


def translate(ticket: Path, lines: List[str], engine: str, beam: int) -> List[str]:
    """What `onelayer-lottery translate` prints."""
    command = [sys.executable, "-m", "onelayer_lottery.cli", "translate", str(ticket)]
    done = subprocess.run(
        [*command, "--engine", engine, "--beam", str(beam), "--threads", "1"],
        input="".join(line + "\n" for line in lines),
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout.split("\n")[:-1]


def opened(browser: Browser, ticket: Path, folder: Path) -> str:
    """Open the page of a ticket from disk; return its message once it is ready."""
    path, text = folder / "page.html", read_ticket(ticket).text
    tables = moses_tables(text.moses if text else None)
    path.write_text(page(ticket.read_bytes(), title="", tables=tables), "utf-8")
    browser.driver.get(path.as_uri())
    wait = WebDriverWait(browser.driver, 120, 0.1)
    wait.until(lambda driver: driver.execute_script(MESSAGE).startswith("Ready"))
    return browser.driver.execute_script(MESSAGE)


def translations(
    browser: Browser, lines: List[str], beam: int
) -> Tuple[List[str], float]:
    """What the page shows for the lines, and the CPU-seconds that it took."""
    driver = browser.driver
    driver.execute_script(PASTE, "")
    driver.find_element(By.ID, "beam").send_keys(Keys.CONTROL, "a")
    driver.find_element(By.ID, "beam").send_keys(str(beam))
    wait = WebDriverWait(driver, 3600, 0.5)
    wait.until(lambda _: driver.execute_script(SHOWN) == [False, 1])
    before = cpu_seconds(browser.process)
    if driver.execute_script(PASTE, "\n".join(lines)) != "\n".join(lines):
        raise SystemExit("the text box does not hold the lines as they were pasted")
    wait.until(lambda _: driver.execute_script(SHOWN) == [False, len(lines)])
    seconds = cpu_seconds(browser.process) - before
    return driver.execute_script(LINES), seconds


def report(
    lines: List[str],
    found: List[str],
    seconds: float,
    expected: Dict[Tuple[str, int], List[str]],
    beam: int,
) -> None:
    print(f"  beam {beam}: {len(lines) / seconds:.1f} lines per CPU-second")
    for (engine, of), wanted in expected.items():
        if of != beam:
            continue
        equal = [ours == theirs for ours, theirs in zip(found, wanted)]
        print(f"    equal to --engine {engine}: {sum(equal):,} of {len(lines):,}")
        for number, same in enumerate(equal):
            if not same:
                print(f"      line {number + 1}: {lines[number]}")


def cpu_seconds(process: int) -> float:
    """CPU time of a process and of all its living descendants."""
    parents: Dict[int, int] = {}
    ticks: Dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may contain blanks.
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        number = int(path.parent.name)
        parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {process}
    while True:
        more = {child for child, parent in parents.items() if parent in family}
        if more <= family:
            break
        family |= more
    return sum(ticks[member] for member in family) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
