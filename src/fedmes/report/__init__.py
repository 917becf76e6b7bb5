"""Finished runs as a page, figures and tables, without training anything again."""
