"""A client and its predictions show themselves."""

import numpy as np
import pytest

import fedmes
from fedmes.data import digits


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    out = tmp_path_factory.mktemp("display") / "run"
    options = {"clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "memory": 6, "model": "linear"}
    fedmes.run(method="fedmes", out=out, **options)
    return fedmes.load_client(out / "seed0/client0")


def test_a_client_says_what_it_is(client):
    classes = ", ".join(client.as_dict()["classes"])
    assert repr(client) == f"<client 0: fedmes, a memory of 6, classes {classes}>"
    page = client._repr_html_()
    assert "<tr><td>memory</td><td>6 samples</td></tr>" in page
    assert f"<tr><td>classes</td><td>{classes}</td></tr>" in page


def test_predictions_show_labels_and_votes(client):
    found = client.predict(digits.load().x[:25])
    assert repr(found) == f"<25 predictions of client 0: {', '.join(found.labels[:10])}, ...>"
    page = found._repr_html_()
    assert page.count("<tr>") == 1 + 20 + 1 and "<td>and 5 more</td>" in page
    first = found[0]
    assert f"<tr><td>0</td><td>{first.label}</td><td>{first.probability:.3f}</td>" in page
    assert repr(client.predict(digits.load().x[0])).startswith("<1 predictions of client 0: ")


def test_predictions_draw_what_was_predicted(client):
    x = digits.load().x[:3]
    found = client.predict(x)
    np.testing.assert_array_equal(found.samples, x)
    figure = found.show(first=2)
    assert figure._repr_png_().startswith(b"\x89PNG")
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "sample 1" in words and "sample 2" not in words
    with pytest.raises(fedmes.UserError, match="nothing to show"):
        found.show(first=0)
