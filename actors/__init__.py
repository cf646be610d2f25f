"""Actors: the processes that run tasks and messages, and the supervisor that watches those of one host.

``python -m omnibus.actors`` runs them. Nothing here imports :mod:`omnibus.brokers`: a process of either kind
knows the other by OMB/1 alone.
"""
