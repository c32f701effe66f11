"""HTTP in, HTTP out: the API as one raw ASGI app, pages on QuartTrio, served by hypercorn."""
