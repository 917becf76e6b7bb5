"""The report in a real browser: it draws, sorts, switches, answers pointer and keyboard, and fits a
phone."""

import pytest

from fedmes.report.write import write_report
from helpers import made
from helpers.browser import IN_BROWSER, find, find_all, look, ready, serious, wait

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

pytestmark = IN_BROWSER


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Nine runs on one split, of which the figures show six, and a group of one run on another
    split."""
    folder = tmp_path_factory.mktemp("runs")
    methods = ("fedavg", "fedprox", "ditto", "fedrep", "fedagem", "local", "joint", "flwf")
    for i, method in enumerate(methods):
        made.write(
            folder / method,
            made.random_accuracy(i, 2, 3, 4),
            made.random_accuracy(50 + i, 2, 3, 4),
            method=method,
        )
    made.write(
        folder / "fedmes", made.random_accuracy(20, 2, 3, 4), made.random_accuracy(70, 2, 3, 4), method="fedmes",
        nolip=made.random_accuracy(30, 2, 3, 4), stream=made.plain_stream(3, 4, ["north", "south", "<i>east"]),
    )  # fmt: skip
    made.write(folder / "other", made.random_accuracy(3, 1, 2, 1), split="b" * 64)
    (folder / "half").mkdir()
    (folder / "half/config.toml").write_text("")
    out = folder / "page.html"
    write_report([folder], out)
    return out


@pytest.fixture
def opened(browser, page):
    """The page, freshly opened, 1280 pixels wide, by day; afterwards nobody complained on the
    console."""
    look(browser, 1280, "light")
    browser.get(page.as_uri())
    ready(browser)
    browser.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    browser.get_log("browser")
    yield browser
    browser.execute_script("try { localStorage.clear() } catch {}")  # the next one starts anew
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def reach(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    return element


def column(browser, index):
    """The first table's cells of a column as a reader sees them."""
    rows = find(browser, "table.results tbody").find_elements(By.TAG_NAME, "tr")
    return [
        row.find_elements(By.CSS_SELECTOR, "th, td")[index].text.replace("\u2212", "-")
        for row in rows
    ]


def means(browser, index):
    return [float(cell.split("±")[0]) for cell in column(browser, index)]


def head(browser, name):
    heads = find_all(browser, "#g0 table.results thead th")
    return next(each for each in heads if each.text.strip(" ↑↓") == name)


def test_opens_without_complaint(browser, page):
    look(browser, 1280, "light")
    browser.get_log("browser")
    browser.get(page.as_uri())
    ready(browser)
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_the_table_sorts_by_click(opened):
    assert head(opened, "Acc_ALL").get_attribute("aria-sort") == "descending"
    assert means(opened, 1) == sorted(means(opened, 1), reverse=True)
    reach(opened, head(opened, "FR")).find_element(By.TAG_NAME, "button").click()
    assert head(opened, "FR").get_attribute("aria-sort") == "ascending"  # the best first
    assert head(opened, "Acc_ALL").get_attribute("aria-sort") is None
    assert means(opened, 3) == sorted(means(opened, 3))
    head(opened, "FR").find_element(By.TAG_NAME, "button").click()
    assert means(opened, 3) == sorted(means(opened, 3), reverse=True)
    head(opened, "method").find_element(By.TAG_NAME, "button").click()
    names = [name.split("\n")[0] for name in column(opened, 0)]
    assert names == sorted(names)


def test_the_table_sorts_by_keyboard(opened):
    button = reach(opened, head(opened, "final acc")).find_element(By.TAG_NAME, "button")
    opened.execute_script("arguments[0].focus()", button)
    ActionChains(opened).send_keys(Keys.ENTER).perform()
    assert head(opened, "final acc").get_attribute("aria-sort") == "descending"
    assert means(opened, 4) == sorted(means(opened, 4), reverse=True)
    ActionChains(opened).send_keys(Keys.SPACE).perform()
    assert means(opened, 4) == sorted(means(opened, 4))


def test_costs_that_a_row_does_not_have_come_last(opened):
    reach(opened, head(opened, "seconds")).find_element(By.TAG_NAME, "button").click()
    assert column(opened, 8)[-1] == ""
    head(opened, "seconds").find_element(By.TAG_NAME, "button").click()
    assert column(opened, 8)[-1] == ""


def test_the_switch_changes_numbers_order_and_figures(opened):
    before, lines = means(opened, 1), curves(opened, "accuracy")
    told = find(opened, ".switch button[value=masked]")
    told.click()
    assert told.get_attribute("aria-pressed") == "true"
    after = means(opened, 1)
    assert after == sorted(after, reverse=True)
    assert sorted(after) != sorted(before)
    assert curves(opened, "accuracy") != lines
    find(opened, ".switch button[value=oblivious]").click()
    assert means(opened, 1) == before
    assert curves(opened, "accuracy") == lines


def curves(browser, name):
    return [path.get_attribute("d") for path in find_all(browser, f"#g0-figure-{name} path.curve")]


def test_every_figure_has_something_in_it(opened):
    for figure in find_all(opened, "figure"):
        charts = figure.find_elements(By.CSS_SELECTOR, "svg[role=img]")
        assert charts, figure.get_attribute("id")
        for chart in charts:
            assert chart.find_elements(By.CSS_SELECTOR, "path:not([d='']), rect")
            assert not chart.find_elements(By.CSS_SELECTOR, "path[d='']")
            assert "NaN" not in chart.get_attribute("outerHTML")
            assert chart.get_attribute("aria-label")
    assert len(curves(opened, "accuracy")) == 9


def test_chips_choose_who_is_in_colour(opened):
    chips = find_all(opened, "#g0 .chips button[aria-pressed]")
    pressed = [chip for chip in chips if chip.get_attribute("aria-pressed") == "true"]
    assert (len(chips), len(pressed)) == (9, 6)
    weak = len(find_all(opened, "#g0-figure-accuracy path.weak"))
    reach(opened, pressed[0]).click()
    assert pressed[0].get_attribute("aria-pressed") == "false"
    assert len(find_all(opened, "#g0-figure-accuracy path.weak")) == weak + 1
    find_all(opened, "#g0 .chips .plain")[0].click()
    assert find_all(opened, "#g0-figure-accuracy path.weak") == []


def test_pointing_shows_the_values(opened):
    chart = reach(opened, find(opened, "#g0-figure-accuracy svg[role=img]"))
    tip = find(opened, "#g0-figure-accuracy .tip")
    assert not tip.is_displayed()
    ActionChains(opened).move_to_element_with_offset(
        chart, 0, -chart.size["height"] // 2 + 3
    ).perform()
    assert tip.is_displayed()
    lines = tip.text.split("\n")
    assert lines[0].startswith("after task")
    (group, _) = opened.execute_script(
        "return JSON.parse(document.getElementById('data').textContent)"
    )["groups"]
    drawn = group["figures"][0]["panels"]["oblivious"][0]["series"]
    task = int(lines[0].split()[-1])
    true = {
        run["label"]: line["y"][task - 1]
        for run, line in zip(group["runs"], drawn, strict=True)
        if run["shown"]
    }
    seen = dict(zip(lines[1::2], [float(line.split()[0]) for line in lines[2::2]], strict=True))
    assert seen == true
    assert list(seen.values()) == sorted(seen.values(), reverse=True)
    area, box = tip.rect, chart.rect
    assert box["y"] - 10 <= area["y"] <= box["y"] + box["height"]  # beside the chart, not below it


def test_arrow_keys_read_a_figure_aloud(opened):
    chart = reach(opened, find(opened, "#g0-figure-forgetting svg[role=img]"))
    ActionChains(opened).send_keys(Keys.TAB).perform()
    opened.execute_script("arguments[0].focus({focusVisible: true})", chart)
    ActionChains(opened).send_keys(Keys.ARROW_RIGHT).perform()
    said = opened.execute_script("return document.getElementById('live').textContent")
    assert said.startswith("after task 3: ") and "fedprox 0." in said
    ActionChains(opened).send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT).perform()
    said = opened.execute_script("return document.getElementById('live').textContent")
    assert said.startswith("after task 4: ")  # around the end
    ActionChains(opened).send_keys(Keys.ESCAPE).perform()
    assert not find(opened, "#g0-figure-forgetting .tip").is_displayed()


def test_a_figure_can_be_read_as_a_table(opened):
    summary = reach(opened, find(opened, "#g0-figure-accuracy summary"))
    summary.click()
    rows = wait(opened, lambda page: find_all(page, "#g0-figure-accuracy details tbody tr"))
    assert [row.find_element(By.TAG_NAME, "th").text for row in rows] == [
        f"after task {t}" for t in range(1, 5)
    ]
    assert all(len(row.find_elements(By.TAG_NAME, "td")) == 9 for row in rows)


def test_a_single_client_can_be_looked_at(opened):
    view = reach(opened, find(opened, "#g0-clients"))
    picks = {name: Select(view.find_element(By.NAME, name)) for name in ("entry", "seed", "client")}
    assert [option.text for option in picks["client"].options] == ["north", "south", "<i>east"]
    assert [option.text for option in picks["seed"].options] == [
        "mean over seeds",
        "seed 0",
        "seed 1",
    ]
    picks["entry"].select_by_visible_text("fedmes, network alone")
    picks["seed"].select_by_visible_text("seed 1")
    picks["client"].select_by_visible_text("<i>east")
    true = made.random_accuracy(30, 2, 3, 4)[1, 2]
    cells = [cell.text for cell in find_all(opened, "#g0-clients td.cell")]
    assert cells == [f"{true[t, i]:.3f}" for t in range(4) for i in range(t + 1)]
    text = view.text
    assert "0, 1" in text and "6, 7" in text  # classes of its first and last task
    assert "private samples" in text
    picks["entry"].select_by_visible_text("fedmes")
    assert [cell.text for cell in find_all(opened, "#g0-clients td.cell")] != cells


def test_nothing_is_wider_than_a_phone(opened):
    look(opened, 390, "light")
    opened.refresh()
    ready(opened)
    for details in find_all(opened, "details"):
        opened.execute_script("arguments[0].open = true", details)
    assert opened.execute_script("return document.documentElement.scrollWidth") == 390
    assert opened.execute_script("return document.body.scrollWidth") <= 390
    for name in ("#theme", ".switch button", ".chips button", "th button"):
        assert find(opened, name).is_displayed()


def test_dark_follows_the_system_and_the_button(opened):
    def background():
        return opened.execute_script("return getComputedStyle(document.body).backgroundColor")

    day = background()
    look(opened, 1280, "dark")
    night = background()
    assert day != night
    button = find(opened, "#theme")
    button.click()  # auto -> light
    assert background() == day
    button.click()  # light -> dark
    look(opened, 1280, "light")
    assert background() == night
    opened.refresh()
    assert background() == night  # kept


def test_the_keyboard_reaches_everything_in_order(opened):
    opened.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    seen = []
    for _ in range(12):
        ActionChains(opened).send_keys(Keys.TAB).perform()
        seen.append(opened.execute_script(
            "const e = document.activeElement; return [e.tagName, getComputedStyle(e).outlineStyle]"))  # fmt: skip
    assert seen[0][0] == "A"  # skip to the answer
    assert {tag for tag, _ in seen} >= {"A", "BUTTON"}
    assert all(outline != "none" for _, outline in seen)


def test_what_is_left_out_and_what_is_not_compared_is_said(opened):
    text = find(opened, "main").text
    assert "Left out: 1 directory" in text and "unfinished" in text
    assert "These results fall into 2 groups" in text
    assert find(opened, "#g1 .headline").text.startswith("fedavg reaches")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_serious(opened, axe, width, scheme):
    look(opened, width, scheme)
    opened.refresh()
    ready(opened)
    for details in find_all(opened, "details"):
        opened.execute_script("arguments[0].open = true", details)
    assert serious(opened, axe) == []


def test_commands_and_tables_are_copied(opened):
    kept = "window.kept = []; navigator.clipboard.writeText = async (text) => { kept.push(text); }"
    opened.execute_script(kept)
    button = find(opened, "#g1 .commands code button.copy")  # of the group with one command
    command = opened.execute_script("return arguments[0].parentElement.innerText", button)
    reach(opened, button).send_keys(Keys.ENTER)
    wait(opened, lambda driver: button.text == "copied")
    assert find(opened, "#live").get_attribute("textContent").startswith("Copied command")
    find(opened, "#g0 .scroll + button.copy").send_keys(Keys.ENTER)
    assert button.text == "copy"
    wait(opened, lambda driver: driver.execute_script("return kept.length") == 2)
    first, table = opened.execute_script("return kept")
    assert first.startswith("fedmes run --benchmark") and "copy" not in first
    assert first.split() == command.removesuffix("copy").split()
    lines = table.split("\n")
    assert lines[0].split("\t")[:3] == ["method", "Acc_ALL", "FR"] and len(lines) == 11
    assert float(lines[1].split("\t")[1].split("±")[0]) == means(opened, 1)[0]


def test_without_permission_the_older_way_copies(opened):
    opened.execute_script(
        "navigator.clipboard.writeText = () => Promise.reject(new Error('no'));"
        "document.execCommand = (what) => { window.kept = document.activeElement.value; return what; }"
    )
    button = find(opened, "#g0 .scroll + button.copy")
    reach(opened, button).send_keys(Keys.ENTER)
    wait(opened, lambda driver: button.text == "copied")
    assert opened.execute_script("return kept").startswith("method\tAcc_ALL")
    assert opened.execute_script("return document.activeElement === arguments[0]", button)
