"""`fedmes watch` in a real browser: the page follows a run, and passes the tests of the report."""

import threading

import pytest

from fedmes.report import watch_server
from fedmes.report.watch_server import WatchServer
from fedmes.results import checkpoint
from fedmes.results.status import Site
from helpers import going
from helpers.browser import IN_BROWSER, find, find_all, look, ready, serious, wait

pytestmark = IN_BROWSER

SITES = [
    Site(name="north", client=0, last_seen=going.MOMENT, samples=270, task=1, accuracy=0.913),
    Site(name="south", client=1, left_out="no answer", refusals=1),
]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A run after its first task, and its page; both go on."""
    monkeypatch.setattr(watch_server, "PAUSE", 0.0)
    going.write(tmp_path, 1, sites=SITES)
    with checkpoint.locked(tmp_path), WatchServer(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def opened(browser, served):
    look(browser, 1280, "light")
    browser.get_log("browser")
    browser.get(served.address)
    ready(browser)
    yield browser
    browser.get("about:blank")  # it asks no more


def complaints(browser):
    return [entry["message"] for entry in browser.get_log("browser")]


def asked(browser):
    return int(browser.execute_script("return document.documentElement.dataset.asked ?? 0"))


def headline(browser):
    """In one step: the element is replaced when the run has moved."""
    return browser.execute_script("return document.querySelector('h1').textContent")


def drawn(browser, name):
    return [path.get_attribute("d") for path in find_all(browser, f"#figure-{name} path.curve")]


def test_it_follows_the_run(opened, served):
    assert headline(opened) == "Training: task 1 of 3, round 2 of 2"
    assert find(opened, "progress").get_attribute("value") == "2"
    assert not find(opened, "#figure-forgetting").is_displayed()
    before = drawn(opened, "accuracy")
    find(opened, ".switch button[value=masked]").click()
    going.write(served.directory, 2, sites=SITES)
    wait(opened, lambda page: headline(page) == "Training: task 2 of 3, round 2 of 2")
    wait(opened, lambda page: find(page, "#figure-forgetting").is_displayed())
    assert drawn(opened, "accuracy") != before
    assert opened.title == "Training: task 2 of 3, round 2 of 2 - fedmes watch"
    assert find(opened, "progress").get_attribute("value") == "4"
    assert find(opened, "#log li").text == "06:30:00 line 3"  # the newest
    assert find(opened, ".switch button[value=masked]").get_attribute("aria-pressed") == "true"
    rows = [row.text for row in find_all(opened, "#state tbody tr")]
    assert rows[1] == "south never - - - 1 no answer"
    going.write(served.directory, 3, phase="finished", seconds_left=None)
    wait(opened, lambda page: headline(page) == "Finished")
    assert complaints(opened) == []


def test_what_has_not_changed_is_not_drawn_again(opened):
    opened.execute_script("document.querySelector('#figure-accuracy svg').dataset.mark = 'old'")
    opened.execute_script("document.querySelector('h1').dataset.mark = 'old'")
    start = asked(opened)
    wait(opened, lambda page: asked(page) >= start + 2)
    assert len(find_all(opened, "[data-mark=old]")) == 2


def test_nothing_is_loaded_from_elsewhere(opened, served):
    wait(opened, lambda page: asked(page) >= 1)
    loaded = opened.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert set(loaded) == {f"{served.address}data"}
    assert complaints(opened) == []


def test_a_server_that_has_ended_is_noticed(opened, served):
    assert not find(opened, "#lost").is_displayed()
    served.token = "another"
    wait(opened, lambda page: find(page, "#lost").is_displayed())
    assert headline(opened) == "Training: task 1 of 3, round 2 of 2"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_serious(opened, axe, width, scheme):
    look(opened, width, scheme)
    opened.refresh()
    ready(opened)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    assert serious(opened, axe) == []
