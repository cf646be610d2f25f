"""``python -m omnibus.actors``: how a mesh starts its processes on a host."""
