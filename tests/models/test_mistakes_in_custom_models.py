"""Mistakes in a model of one's own: two lines with file, line and advice, before anything starts."""

import pytest

from helpers.mistakes import ENGINES, line_of, refused

BODY = "def __init__(self, shape, classes):\n    super().__init__()\n    self.head = nn.Linear(64, classes)\n"
MODELS = {
    "no features": (BODY, "class Mine", "model Mine needs `head`, its last nn.Linear, and `features(x)`"),
    "no head": ("def features(self, x):\n    return x\ndef __init__(self, shape, classes):\n    super().__init__()",
                "class Mine", "model Mine needs `head`, its last nn.Linear, and `features(x)`"),
    "a layer that does not fit": (BODY + "def features(self, x):\n    return nn.Flatten()(x) @ torch.ones(7, 64)",
                                  "torch.ones(7", "model Mine cannot take samples of shape"),
    "an error when it is made": (BODY + "    self.width = shape[0] / 0", "/ 0",
                                 "model Mine: it fails with ZeroDivisionError: division by zero"),
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", MODELS)
def test_a_mistake_in_a_model_names_its_line(case, engine, write):
    body, marked, said = MODELS[case]
    text = write(body, base="nn.Module")
    lines = refused(engine, model="mine.py:Mine", method="fedmes", **{"model.width": None})
    assert lines[0].startswith(said)
    assert f"mine.py:{line_of(text, marked)}" in "\n".join(lines)
    assert "docs/own-model.md" in lines[1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["fedavg", "mine.py:Mine"])
def test_a_model_is_blamed_for_its_own_lines(method, engine, write):
    """Whoever calls it; here it fails as soon as gradients are wanted."""
    write("pull = 1")
    text = write(
        BODY
        + "def features(self, x):\n    assert not torch.is_grad_enabled()\n    return x.flatten(1)",
        base="nn.Module",
        name="model.py",
    )
    lines = refused(engine, model="model.py:Mine", method=method, **{"model.width": None})
    assert lines[0].startswith("model Mine") and "AssertionError" in lines[0]
    assert f"model.py:{line_of(text, 'assert')}" in "".join(lines)
    assert lines[1].endswith("docs/own-model.md")
