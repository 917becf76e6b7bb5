import pytest

from helpers.mistakes import write  # noqa: F401  (a fixture)
from helpers.runs_of_methods import Run


@pytest.fixture(scope="session")
def runs():
    """A whole run of each method, made when it is first asked for."""
    made = {}

    def get(method):
        if method not in made:
            made[method] = Run({"method": method, "epochs": 2})
        return made[method]

    return get
