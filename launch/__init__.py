"""Backends that start a mesh's command lines: on this host, inside a SLURM allocation, on a Ray cluster.

A backend knows how to start and stop a command line somewhere, and nothing of what runs in it: this package
imports only :mod:`omnibus.errors` and :mod:`omnibus.rundir`.
"""
