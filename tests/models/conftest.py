from helpers.mistakes import write  # noqa: F401  (a fixture)
