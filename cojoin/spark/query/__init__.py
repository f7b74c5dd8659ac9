"""The run of a query: started, checked, written batch by batch, ended."""
