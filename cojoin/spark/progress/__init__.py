"""How far a query has come, drawn while somebody waits for it."""
