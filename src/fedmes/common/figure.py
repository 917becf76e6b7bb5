"""A figure that a notebook shows, whatever its settings for matplotlib."""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure without pyplot, so that none stays open; a cell that ends with it shows it."""

    def _repr_png_(self) -> bytes:
        FigureCanvasAgg(self)
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()
