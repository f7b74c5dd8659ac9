"""The check that a result depends on its rows alone: they are delivered in many ways, and what differs is shrunk."""
