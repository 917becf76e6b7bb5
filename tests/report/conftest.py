from helpers.browser import axe, browser  # noqa: F401  (fixtures)
