"""Chromium and Firefox without a window, driven by selenium.

Debian packages a driver for Chromium but none for Firefox. Firefox needs none: it takes
the same commands, under other names, on a socket of its own, called Marionette.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional

from selenium import webdriver
from selenium.webdriver.remote.command import Command
from selenium.webdriver.remote.file_detector import UselessFileDetector
from selenium.webdriver.remote.webdriver import WebDriver

BROWSERS = ("chromium", "firefox")
_PROGRAMS = {"chromium": ("chromium", "chromedriver"), "firefox": ("firefox-esr",)}
_PATIENCE = 60  # seconds

# Selenium's commands as Marionette calls them, without its prefix "WebDriver:".
_NAMES = {
    Command.NEW_SESSION: "NewSession",
    Command.QUIT: "DeleteSession",
    Command.GET: "Navigate",
    Command.GET_TITLE: "GetTitle",
    Command.FIND_ELEMENT: "FindElement",
    Command.FIND_ELEMENTS: "FindElements",
    Command.FIND_CHILD_ELEMENTS: "FindElements",
    Command.CLEAR_ELEMENT: "ElementClear",
    Command.CLICK_ELEMENT: "ElementClick",
    Command.SEND_KEYS_TO_ELEMENT: "ElementSendKeys",
    Command.GET_ELEMENT_TEXT: "GetElementText",
    Command.GET_ELEMENT_TAG_NAME: "GetElementTagName",
    Command.GET_ELEMENT_ATTRIBUTE: "GetElementAttribute",
    Command.GET_ELEMENT_PROPERTY: "GetElementProperty",
    Command.GET_ELEMENT_ARIA_LABEL: "GetComputedLabel",
    Command.GET_ELEMENT_ARIA_ROLE: "GetComputedRole",
    Command.IS_ELEMENT_SELECTED: "IsElementSelected",
    Command.IS_ELEMENT_ENABLED: "IsElementEnabled",
    Command.W3C_GET_ACTIVE_ELEMENT: "GetActiveElement",
    Command.W3C_EXECUTE_SCRIPT: "ExecuteScript",
    Command.W3C_EXECUTE_SCRIPT_ASYNC: "ExecuteAsyncScript",
    Command.W3C_ACTIONS: "PerformActions",
    Command.SET_TIMEOUTS: "SetTimeouts",
    Command.SET_WINDOW_RECT: "SetWindowRect",
    Command.SCREENSHOT: "TakeScreenshot",
}


class Browser(NamedTuple):
    driver: WebDriver
    process: int  # whose descendants are all processes of the browser


def missing(browser: str) -> Optional[str]:
    """Return which programs of a browser are missing, as a sentence, or None."""
    absent = [name for name in _PROGRAMS[browser] if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


@contextmanager
def started(browser: str) -> Iterator[Browser]:
    """Start one of BROWSERS with an empty profile, and end it."""
    with {"chromium": _chromium, "firefox": _firefox}[browser]() as found:
        found.driver.set_script_timeout(_PATIENCE)
        yield found


@contextmanager
def _chromium() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{word}")
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver, service.process.pid)
    finally:
        driver.quit()


@contextmanager
def _firefox() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # 0 is any free port; Firefox writes the one that it took into its profile.
        Path(profile, "user.js").write_text('user_pref("marionette.port", 0);\n')
        process = subprocess.Popen(
            ["firefox-esr", "--headless", "--marionette", "--profile", profile],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = _written(Path(profile, "MarionetteActivePort"), process)
            marionette: Any = _Marionette(port)
            options = webdriver.FirefoxOptions()
            local = UselessFileDetector()  # files to choose need no upload
            driver = WebDriver(marionette, file_detector=local, options=options)
            yield Browser(driver, process.pid)
        finally:
            process.terminate()
            process.wait(_PATIENCE)


def _written(path: Path, process: subprocess.Popen) -> int:
    """The port in a file that Firefox writes once it listens."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and process.poll() is None:
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.05)
    raise SystemExit(f"Firefox did not listen within {_PATIENCE} seconds")


class _Marionette:
    """Send selenium's commands to Firefox; a message is its length, ":" and JSON."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._replies = self._socket.makefile("rb")
        self._sent = 0
        self._receive()  # which protocol Firefox speaks

    def execute(self, command: str, params: Dict[str, Any]) -> Dict[str, Any]:
        self._sent += 1
        given = {name: value for name, value in params.items() if name != "sessionId"}
        if command == Command.FIND_CHILD_ELEMENTS:
            given["element"] = given.pop("id")
        message = [0, self._sent, f"WebDriver:{_NAMES[command]}", given]
        content = json.dumps(message).encode()
        self._socket.sendall(b"%d:%s" % (len(content), content))
        _, _, error, result = self._receive()
        if error:
            return {"status": error["error"], "value": error}
        if isinstance(result, dict) and set(result) == {"value"}:
            result = result["value"]
        return {"value": result}

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def _receive(self) -> Any:
        length = b""
        while not length.endswith(b":"):
            byte = self._replies.read(1)
            if not byte:
                raise ConnectionError("Firefox has ended")
            length += byte
        return json.loads(self._replies.read(int(length[:-1])))
