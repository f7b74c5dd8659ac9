"""Time: durations, watermarks and how they merge, strategies, idleness, timers."""
