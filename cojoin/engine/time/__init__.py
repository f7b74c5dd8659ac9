"""Time: durations, watermarks and how they are merged, watermark strategies, idleness, and timers."""
