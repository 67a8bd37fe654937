"""The page in Chromium, used as a person would: type, change the beam, drop files."""

import shutil
import time

import pytest
from page import GOLDEN, needs_node, random_lines, random_ticket, run_page_program

from onelayer_lottery.page.build import page
from onelayer_lottery.ticket.format import read_ticket, write_ticket

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    needs_node,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"
    ),
]
MARKUP = "<img src=x onerror=document.title='run'>"


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{word}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.ticket"
    write_ticket(random_ticket(), path)
    return path


class Page:
    """A page of a ticket, opened from disk."""

    def __init__(self, browser, ticket, **options):
        self.browser = browser
        path = ticket.with_suffix(".html")
        text = page(ticket.read_bytes(), title="A page", **options)
        path.write_text(text, encoding="utf-8")
        browser.get(path.as_uri())
        self.until(lambda: self.text("message").startswith("Ready"))

    def at(self, name):
        return self.browser.find_element(By.ID, name)

    def text(self, name):
        return self.at(name).get_property("textContent")

    def until(self, condition):
        WebDriverWait(self.browser, 60, 0.05).until(lambda _: condition())

    def write(self, words, name="source"):
        self.at(name).clear()
        self.at(name).send_keys(words)

    def lines(self):
        items = self.browser.find_elements(By.CSS_SELECTOR, "#output li")
        return [item.get_property("textContent") for item in items]

    def settled(self):
        self.until(lambda: "stale" not in self.at("output").get_attribute("class"))
        return self.lines()


def answers(ticket, lines, beam=5):
    return run_page_program(ticket, lines, beam).stdout.splitlines()


def test_what_is_typed_is_translated_and_beams_are_alternatives(browser, model):
    shown = Page(browser, model)
    lines = random_lines(read_ticket(model), 3)
    shown.write("\n".join(lines))
    assert shown.settled() == answers(model, lines)
    found = browser.find_elements(By.CSS_SELECTOR, "#alternatives li")
    assert len(found) == 4
    shown.write("1", "beam")
    assert shown.settled() == answers(model, lines, beam=1)
    assert not browser.find_elements(By.CSS_SELECTOR, "#alternatives li")


def test_the_idea_is_shown(browser, model):
    shown = Page(browser, model)
    shown.until(lambda: browser.find_elements(By.CSS_SELECTOR, "figure"))
    assert shown.text("seed") == "1"
    assert len(browser.find_elements(By.CSS_SELECTOR, "figure")) == 3
    Select(shown.at("role")).select_by_value("encoder.embed_tokens")
    shown.until(lambda: len(browser.find_elements(By.CSS_SELECTOR, "figure")) == 2)
    parts = shown.text("parts")
    assert "masks" in parts
    assert "dictionaries" in parts
    assert "stated digests" in shown.text("checks")


def test_another_ticket_is_dropped_and_a_damaged_one_refused(browser, model):
    shown = Page(browser, model)
    lines = random_lines(read_ticket(model), 1)
    shown.write(lines[0])
    shown.settled()
    other, damaged = model.with_name("other.ticket"), model.with_name("damaged.ticket")
    write_ticket(random_ticket(seed=77), other)
    damaged.write_bytes(other.read_bytes()[:-5])
    shown.at("file").send_keys(str(damaged))
    shown.until(lambda: shown.text("message").startswith("Cannot open damaged.ticket"))
    assert shown.text("message").count(".") <= 3
    shown.write(lines[0] + " ")
    assert shown.settled() == answers(model, lines)
    drop = """
        const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(arguments[0])], 'other.ticket'));
        document.body.dispatchEvent(
          new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
    """
    browser.execute_script(drop, list(other.read_bytes()))
    shown.until(lambda: shown.text("seed") == "77")
    assert shown.settled() == answers(other, lines)


def test_markup_is_shown_and_never_run(browser, model):
    shown = Page(browser, model, examples=[MARKUP + "</script>"])
    button = browser.find_element(By.CSS_SELECTOR, "#examples button")
    assert button.text == MARKUP + "</script>"
    shown.write(MARKUP)
    shown.settled()
    assert not browser.find_elements(By.CSS_SELECTOR, "img")
    assert browser.title == "A page"


def test_the_page_can_ask_nobody(browser, model):
    Page(browser, model)
    ask = """
        const done = arguments[0];
        fetch('http://127.0.0.1:9/')
          .then(() => done('sent'), error => done(String(error)));
    """
    assert "TypeError" in browser.execute_async_script(ask)
    said = "\n".join(entry["message"] for entry in browser.get_log("browser"))
    assert "Content Security Policy" in said


def test_a_pasted_megabyte_leaves_the_page_responsive(browser, model):
    shown = Page(browser, model)
    lines = random_lines(read_ticket(model), 1)
    paste = """
        const box = document.getElementById('source');
        box.value = `${'wort '.repeat(20)}\\n`.repeat(10000);
        box.dispatchEvent(new Event('input'));
    """
    browser.execute_script(paste)
    started = time.monotonic()
    browser.execute_script("document.getElementById('source').value = ''")
    shown.at("source").send_keys(lines[0])
    assert shown.settled() == answers(model, lines)
    assert time.monotonic() - started < 30


def test_pairs_have_two_inputs_and_a_label(browser, tmp_path):
    ticket = tmp_path / "pairs.ticket"
    shutil.copy(GOLDEN / "roberta.ticket", ticket)
    shown = Page(browser, ticket)
    first, second = random_lines(read_ticket(ticket), 2)
    shown.write(first)
    shown.write(second, "other")
    (label,) = shown.settled()
    assert answers(ticket, [f"{first}\t{second}"])[0].split("\t")[0] == label
    assert len(browser.find_elements(By.CSS_SELECTOR, "#alternatives li")) == 3
