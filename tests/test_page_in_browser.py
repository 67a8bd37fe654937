"""The page in browsers, used as a person would: type, change the beam, drop files."""

import base64
import shutil
import sys
import time

import pytest
from conftest import ROOT
from page import GOLDEN, needs_node, random_lines, random_ticket, run_page_program

from onelayer_lottery.page.build import page
from onelayer_lottery.page.moses import moses_tables
from onelayer_lottery.ticket.format import (
    Moses,
    TextSteps,
    read_ticket,
    write_ticket,
)

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

sys.path.insert(0, str(ROOT / "benchmarks"))
from browsers import BROWSERS, missing, started

pytestmark = [pytest.mark.slow, needs_node]
MARKUP = "<img src=x onerror=document.title='run'>"
RAW = TextSteps(Moses("de", "en", dashes=True), lower=True)
CONTROLS = "textarea:not(#other), input, select, button, canvas, progress, section"
DROP = """
    const [name, content, done] = arguments, data = new DataTransfer();
    const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
    data.items.add(new File([bytes], name));
    document.body.dispatchEvent(
      new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
    setTimeout(done, 100); // the file is read
"""
# A key as soon as the page says that it reads a ticket.
TYPE_WHILE_READING = """
    const observer = new MutationObserver(() => {
      observer.disconnect();
      document.getElementById('source').dispatchEvent(new Event('input'));
    });
    observer.observe(document.getElementById('message'), {childList: true});
"""
DRAG = """
    const data = new DataTransfer();
    if (arguments[0]) data.items.add(new File(['a'], 'a.ticket'));
    else data.setData('text/plain', 'a');
    return ['dragover', 'drop'].map(kind => !document.getElementById('source')
      .dispatchEvent(
        new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true})));
"""
COLOURS = """
    const style = getComputedStyle(document.body);
    const numbers = text => text.match(/[0-9]+/g).map(Number);
    return [numbers(style.backgroundColor), numbers(style.color)];
"""
# What a paste does, and the longest time in which the page then answers nothing.
PASTE = """
    const [text, seconds, done] = arguments;
    let longest = 0, before = performance.now();
    const end = before + 1000 * seconds;
    const box = document.getElementById('source');
    box.value = text;
    box.dispatchEvent(new Event('input'));
    const tick = () => {
      const now = performance.now();
      longest = Math.max(longest, now - before);
      before = now;
      if (now < end) setTimeout(tick, 5);
      else done(longest);
    };
    setTimeout(tick, 5);
"""


@pytest.fixture(scope="module", params=BROWSERS)
def browser(request):
    reason = missing(request.param)
    if reason:
        pytest.skip(reason)
    with started(request.param) as found:
        yield found.driver


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
        text = read_ticket(ticket).text
        tables = moses_tables(text.moses if text else None)
        text = page(ticket.read_bytes(), title="A page", tables=tables, **options)
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

    def drop(self, file):
        content = base64.b64encode(file.read_bytes()).decode()
        self.browser.execute_async_script(DROP, file.name, content)

    def opened(self):
        return self.text("message").startswith(("Ready", "Cannot open"))

    def lines(self):
        items = self.browser.find_elements(By.CSS_SELECTOR, "#output li")
        return [item.get_property("textContent") for item in items]

    def settled(self):
        self.until(lambda: "stale" not in self.at("output").get_attribute("class"))
        return self.lines()


def answers(ticket, lines, beam=5, text=None):
    return run_page_program(ticket, lines, beam, text).stdout.splitlines()


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


def test_words_that_the_model_does_not_know_are_noticed(browser, model):
    shown = Page(browser, model)
    shown.write("w1 unheard")
    shown.settled()
    assert shown.text("note") == "The model does not know every word of your text."
    shown.at("source").send_keys("\n" + "w1 " * 20)
    shown.until(lambda: shown.text("note").startswith("A line is longer"))
    shown.write("w1 w2")
    shown.until(lambda: shown.text("note") == "")


def test_the_idea_is_shown(browser, model):
    shown = Page(browser, model)
    shown.until(lambda: browser.find_elements(By.CSS_SELECTOR, "figure"))
    assert shown.text("seed") == "1"
    assert len(browser.find_elements(By.CSS_SELECTOR, "figure")) == 3
    assert "Only these bits were learned" in shown.text("idea")
    assert shown.text("bits") == "2,752"
    Select(shown.at("role")).select_by_value("encoder.embed_tokens")
    shown.until(lambda: len(browser.find_elements(By.CSS_SELECTOR, "figure")) == 2)
    parts = shown.text("parts")
    assert "masks" in parts
    assert "dictionaries" in parts
    assert "have the digests that it states" in shown.text("checks")


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
    assert "the ticket that was open before stays" in shown.text("message")
    assert shown.text("title") == browser.title == "A page"
    shown.write(lines[0] + " ")
    assert shown.settled() == answers(model, lines)
    shown.drop(other)
    shown.until(lambda: shown.text("seed") == "77")
    assert shown.settled() == answers(other, lines)
    assert shown.text("message").endswith("seconds with other.ticket.")
    assert shown.text("title") == browser.title == "other.ticket"


def test_typing_while_another_ticket_opens_does_not_stop_it(browser, model):
    shown = Page(browser, model)
    lines = random_lines(read_ticket(model), 1)
    shown.write(lines[0])
    shown.settled()
    other = model.with_name("other.ticket")
    write_ticket(random_ticket(seed=77), other)
    browser.execute_script(TYPE_WHILE_READING)
    shown.drop(other)
    shown.until(lambda: shown.text("seed") == "77")
    assert not shown.at("progress").is_displayed()
    assert shown.settled() == answers(other, lines)


def test_a_file_too_large_for_memory_is_refused_unread(browser, model):
    shown = Page(browser, model)
    huge = model.with_name("huge.ticket")
    with huge.open("wb") as file:
        file.truncate(2**30 + 1)
    shown.at("file").send_keys(str(huge))
    shown.until(lambda: shown.text("message").startswith("Cannot open huge.ticket"))
    assert "1,073,741,825 bytes" in shown.text("message")


def test_a_file_that_cannot_be_read_ends_in_a_sentence(browser, model):
    if browser.name != "chrome":
        pytest.skip("Firefox keeps what tests change apart from what the page sees")
    shown = Page(browser, model)
    browser.execute_script("File.prototype.arrayBuffer = () => Promise.reject('gone')")
    shown.drop(model)
    assert "Cannot open model.ticket: this browser cannot read" in shown.text("message")


def test_text_is_dragged_into_the_text_box_and_files_anywhere(browser, model):
    Page(browser, model)
    assert browser.execute_script(DRAG, True) == [True, True]
    assert browser.execute_script(DRAG, False) == [False, False]


def test_hostile_tickets_that_are_dropped_end_in_a_sentence(browser, model):
    shown = Page(browser, model)
    hostile = sorted((ROOT / "fuzz" / "regressions").rglob("*.ticket"))
    huge = model.with_name("huge.ticket")
    write_ticket(random_ticket(keep=0.001, encoder_ffn_embed_dim=60_000), huge)
    refused = 0
    for path in [*hostile, huge]:
        shown.drop(path)
        shown.until(shown.opened)
        said = shown.text("message")
        assert said.startswith((f"Cannot open {path.name}: ", "Ready after")), path
        assert "this page fails" not in said, (path, said)
        refused += said.startswith("Cannot")
    assert refused >= len(hostile) / 2
    shown.drop(model)
    shown.until(lambda: shown.text("message").startswith("Ready"))
    lines = random_lines(read_ticket(model), 1)
    shown.write(lines[0])
    assert shown.settled() == answers(model, lines)


def test_raw_text_is_tokenised_and_lower_cased(browser, tmp_path):
    ticket, path = random_ticket(text=RAW), tmp_path / "raw.ticket"
    write_ticket(ticket, path)
    shown = Page(browser, path)
    lines = [f"({line.title()}), z. B.!" for line in random_lines(ticket, 2)]
    shown.write("\n".join(lines))
    assert shown.settled() == answers(path, lines, text=RAW)
    english = tmp_path / "english.ticket"
    moses = Moses("fr", "de", dashes=False)
    write_ticket(random_ticket(text=TextSteps(moses)), english)
    shown.drop(english)
    shown.until(lambda: "rules of fr, which this page" in shown.text("message"))


def test_everything_is_reached_by_keys_and_has_a_name(browser, model):
    shown = Page(browser, model, examples=random_lines(read_ticket(model), 2))
    shown.until(lambda: browser.find_elements(By.CSS_SELECTOR, "figure"))
    shown.at("source").click()
    reached = []
    for _ in range(5):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        focused = browser.switch_to.active_element
        reached.append(focused.get_attribute("id") or focused.tag_name)
    assert reached == ["beam", "file", "button", "button", "role"]
    for control in browser.find_elements(By.CSS_SELECTOR, CONTROLS):
        if not control.is_displayed():
            continue
        assert control.accessible_name, control.get_attribute("outerHTML")[:80]
    assert shown.at("message").get_attribute("aria-live") == "polite"
    assert shown.at("output").get_attribute("aria-live") == "polite"
    assert shown.at("output").get_attribute("lang") == "en"
    shown.settled()
    assert shown.at("output").get_attribute("aria-busy") == "false"
    shown.at("role").send_keys(Keys.HOME)
    shown.until(lambda: len(browser.find_elements(By.CSS_SELECTOR, "figure")) != 3)
    browser.find_elements(By.CSS_SELECTOR, "#examples button")[1].send_keys(Keys.ENTER)
    lines = random_lines(read_ticket(model), 2)
    shown.until(lambda: shown.at("source").get_property("value") == lines[1])
    assert shown.settled() == answers(model, lines[1:])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_no_scroll_sideways_and_its_own_colours(browser, model, scheme):
    if browser.name != "chrome":
        pytest.skip("only Chromium's driver sets the width and the colours of a phone")
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        shown = Page(browser, model, examples=["w" * 200, "wort " * 30])
        shown.until(lambda: browser.find_elements(By.CSS_SELECTOR, "figure"))
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 360
        paper, ink = browser.execute_script(COLOURS)
        assert (sum(paper) < sum(ink)) == (scheme == "dark")
        kept = "light" if scheme == "dark" else "dark"
        assert f"a mask is {kept} where it keeps" in shown.text("corner")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


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
        let refused = 'nothing';
        addEventListener('securitypolicyviolation', event => {
          refused = event.effectiveDirective;
        });
        const answer = error => setTimeout(() => done([String(error), refused]), 100);
        fetch('http://127.0.0.1:9/').then(answer, answer);
    """
    error, refused = browser.execute_async_script(ask)
    assert "TypeError" in error
    assert refused == "connect-src"


PASTED = {
    "many lines": ("wort " * 20 + "\n") * 10_000,
    "one line": "wort " * 200_000,
    "one word": "w" * 1_000_000,
    "dots": "." * 1_000_000,
    "spaces": " " * 1_000_000 + "wort",
}


@pytest.mark.parametrize("kind", PASTED)
def test_a_pasted_megabyte_leaves_the_page_responsive(browser, tmp_path, kind):
    bare = tmp_path / "bare.html"
    bare.write_text("<!doctype html><textarea id=source rows=5></textarea>")
    browser.get(bare.as_uri())
    alone = browser.execute_async_script(PASTE, PASTED[kind], 2)
    ticket, path = random_ticket(text=RAW), tmp_path / "model.ticket"
    write_ticket(ticket, path)
    shown = Page(browser, path)
    lines = random_lines(ticket, 1)
    longest = browser.execute_async_script(PASTE, PASTED[kind], 2)
    print(f"longest without an answer: {longest:.0f} ms, a text box alone {alone:.0f}")
    assert longest < 2_000 + 3 * alone
    started = time.monotonic()
    shown.at("source").send_keys(Keys.CONTROL, "a")
    shown.at("source").send_keys(Keys.DELETE, lines[0])
    assert shown.settled() == answers(path, lines, text=RAW)
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
