"""Pictures of joins, of watermarks and of lateness, with matplotlib: ``pip install "cojoin[plots]"``.

    import cojoin as cj

    cj.plots.plot_timeline(joined, keys=7)
    cj.plots.plot_watermarks(cj.read_progress(spark, checkpoint))
    cj.plots.plot_lateness(cj.lateness(orders, event_time="ordered_at", arrival="loaded_at"))

Each returns the matplotlib ``Axes`` that it has drawn into, and takes one as ``ax``. All times are UTC.
"""

from __future__ import annotations

from cojoin.plots.lateness_curve import plot_lateness
from cojoin.plots.timeline import plot_timeline
from cojoin.plots.watermark_lines import plot_watermarks

__all__ = ["plot_lateness", "plot_timeline", "plot_watermarks"]
