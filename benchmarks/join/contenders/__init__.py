"""One module for each contender: what it is called and needs, and its program, which only its own process runs.

Whatever an environment of its own provides is imported inside functions, as the runner imports these modules too.
"""
