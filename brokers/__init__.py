"""The broker: one single-threaded process that holds tasks in priority lanes and routes them to actors.

The state machine is :mod:`omnibus.brokers.core`, the socket and its poll loop are
:mod:`omnibus.brokers.shell`; ``python -m omnibus.brokers`` runs it. Nothing here imports
:mod:`omnibus.actors`, numpy, pyarrow, torch or cloudpickle: payload frames are opaque to a broker.
"""
