"""The API as one raw ASGI application over an `EngineClient`."""
