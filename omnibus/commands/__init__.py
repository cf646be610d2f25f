"""The commands of ``omnibus``: a module for each, or for those that belong together."""
