"""`triolet bench`: how fast an engine or a server is, measured so that it can be repeated."""
