"""The page of a report as a browser would find it, and runs made by hand to report on."""

import json
from html.parser import HTMLParser

from fedmes.report.collect import Run
from fedmes.report.write import write_report
from helpers import made


class Page(HTMLParser):
    """What a browser would find: elements by tag with their attributes and text; script elements as
    raw text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append(
            {"tag": tag, "attributes": dict(attributes), "text": "", "inside": list(self.open)}
        )
        if tag not in ("meta", "link", "br"):
            self.open.append(self.found[-1])

    def handle_endtag(self, tag):
        while self.open and self.open.pop()["tag"] != tag:
            pass

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            each
            for each in self.found
            if each["tag"] == tag
            and all(each["attributes"].get(name) == value for name, value in wanted.items())
        ]

    def one(self, tag, **attributes):
        (element,) = self.all(tag, **attributes)
        return element

    @property
    def data(self):
        return json.loads(self.one("script", id="data")["text"])


def read(path):
    return Page(path.read_text(encoding="utf-8"))


def report_on(tmp_path, *directories, **options):
    write_report(list(directories), tmp_path / "page.html", **options)
    return read(tmp_path / "page.html")


def runs_of(*given, **options):
    """Runs by (label, Acc_ALL of each seed)."""
    return [
        Run.of(
            made.result(made.triangle(values, seeds=len(values)), method=label, **options), label
        )
        for label, values in given
    ]
