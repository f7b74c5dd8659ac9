"""Pictures of joins and of watermarks, with matplotlib: ``pip install "cojoin[plots]"``.

    import cojoin as cj

    cj.plots.plot_timeline(joined, keys=7)
    cj.plots.plot_watermarks(cj.read_progress(spark, checkpoint))

Each returns the matplotlib ``Axes`` that it has drawn into, and takes one as ``ax``. All times are UTC.
"""

from __future__ import annotations

from cojoin.plots.timeline import plot_timeline
from cojoin.plots.watermark_lines import plot_watermarks

__all__ = ["plot_timeline", "plot_watermarks"]
