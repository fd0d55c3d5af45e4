"""Was this sample trained on: asked by clients and by the server."""
