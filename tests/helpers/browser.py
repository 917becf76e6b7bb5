"""A real browser for pages: Chromium (or Chrome) and chromedriver on PATH; the accessibility check
is axe, from the package axe-core-python."""

import shutil
from importlib import resources

import pytest

from helpers.waiting import HANGS

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")
IN_BROWSER = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None,
        reason="no browser here: chromium (or google-chrome) and chromedriver are needed on PATH",
    ),
]


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1280,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def axe():
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    return resources.files(package).joinpath("axe.min.js").read_text(encoding="utf-8")


def serious(browser, axe):
    """What axe finds on the page that is open: rule, impact, and where."""
    browser.execute_script(axe)
    browser.set_script_timeout(HANGS)
    # of rules that are kept, one place is enough
    run = "axe.run({resultTypes: ['violations']}).then(arguments[0])"
    found = browser.execute_async_script(run)
    assert len(found["passes"]) > 15  # it did look
    return [
        (each["id"], each["impact"], [node["target"] for node in each["nodes"]][:3])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def wait(browser, happened):
    """What `happened` returns of the browser, as soon as that is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, HANGS, poll_frequency=0.05).until(happened)


def ready(browser):
    asked = "return document.documentElement.dataset.ready"
    wait(browser, lambda there: there.execute_script(asked) == "yes")


def look(browser, width, scheme):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def find(browser, selector):
    return browser.find_element("css selector", selector)


def find_all(browser, selector):
    return browser.find_elements("css selector", selector)
