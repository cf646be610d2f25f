"""The layer table: where each module of the tree stands, and what it may import.

A module imports from its own layer or from lower ones, and imports make no cycle. *Pure* modules decide
without I/O: they are given time, ids and jitter. *Shells* are the only ones that touch ``zmq``. A new module
needs a line here.
"""

from __future__ import annotations

__all__ = ["FACES", "IMPURE", "LAYERS", "PURE", "SHELLS"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LAYERS: dict[int, str] = {
    0: """
        omnibus.errors  omnibus.recovery  omnibus.values
        omnibus.actors  omnibus.brokers  omnibus.launch
    """,
    1: """
        omnibus.address  omnibus.checkpoint  omnibus.functions  omnibus.hostid  omnibus.payload
        omnibus.channel  omnibus.faults  omnibus.handshake  omnibus.heads  omnibus.lifting  omnibus.logs
        omnibus.lowering
        omnibus.pickling  omnibus.private  omnibus.protocol  omnibus.rundir  omnibus.runfile  omnibus.running
        omnibus.sharedmem  omnibus.tensors
    """,
    2: """
        omnibus.futures  omnibus.links  omnibus.linkwatch  omnibus.options  omnibus.peer  omnibus.requests
        omnibus.sockets  omnibus.streams
        omnibus.launch.base  omnibus.launch.child  omnibus.launch.local  omnibus.launch.ray  omnibus.launch.slurm
    """,
    3: """
        omnibus.aio  omnibus.aiodriver  omnibus.aiostreams  omnibus.bus  omnibus.driver  omnibus.embedded
        omnibus.face  omnibus.refs
        omnibus.brokers.actors  omnibus.brokers.catalog  omnibus.brokers.clients  omnibus.brokers.dispatch
        omnibus.brokers.ends  omnibus.brokers.events  omnibus.brokers.hello  omnibus.brokers.invariants
        omnibus.brokers.kinds  omnibus.brokers.lanes  omnibus.brokers.ledger  omnibus.brokers.lending
        omnibus.brokers.lockstep  omnibus.brokers.losses  omnibus.brokers.nodes  omnibus.brokers.numbers
        omnibus.brokers.peers
        omnibus.brokers.placement  omnibus.brokers.pools  omnibus.brokers.publishing  omnibus.brokers.reading
        omnibus.brokers.recall  omnibus.brokers.sessions  omnibus.brokers.sharing  omnibus.brokers.shelf
        omnibus.brokers.state  omnibus.brokers.status  omnibus.brokers.tasks  omnibus.brokers.topics
        omnibus.brokers.waiting  omnibus.brokers.workers
    """,
    4: """
        omnibus.brokers.core
        omnibus.actors.actor  omnibus.actors.attempts  omnibus.actors.children  omnibus.actors.commands
        omnibus.actors.config  omnibus.actors.nodecore  omnibus.actors.nodelink  omnibus.actors.orders
        omnibus.actors.timers
        omnibus.actors.inbox  omnibus.actors.mailbox  omnibus.actors.restart
    """,
    5: """
        omnibus.executor  omnibus.prefetch  omnibus.runtime  omnibus.workflow
        omnibus.brokers.__main__  omnibus.brokers.auth  omnibus.brokers.journal  omnibus.brokers.shell
        omnibus.actors.__main__  omnibus.actors.embed  omnibus.actors.frames
        omnibus.actors.aiolink  omnibus.actors.aiorunner  omnibus.actors.birth  omnibus.actors.bonds
        omnibus.actors.calls
        omnibus.actors.endings  omnibus.actors.nursery  omnibus.actors.output  omnibus.actors.resources
        omnibus.actors.group  omnibus.actors.process  omnibus.actors.runner  omnibus.actors.supervisor
        omnibus.actors.zygote
    """,
    6: """
        omnibus  omnibus.cli  omnibus.demo  omnibus.demo_run  omnibus.demo_work
        omnibus.commands  omnibus.commands.audit  omnibus.commands.base  omnibus.commands.checks
        omnibus.commands.doctor  omnibus.commands.extras  omnibus.commands.foreground  omnibus.commands.lines
        omnibus.commands.meshoptions  omnibus.commands.workoptions
        omnibus.commands.output  omnibus.commands.processes  omnibus.commands.status  omnibus.commands.tables
        omnibus.commands.top  omnibus.commands.up  omnibus.commands.values  omnibus.commands.work
    """,
}
"""The names of each layer's modules."""

PURE = _names("""
    omnibus.channel  omnibus.options  omnibus.payload  omnibus.peer  omnibus.protocol  omnibus.values
    omnibus.brokers.actors  omnibus.brokers.catalog  omnibus.brokers.clients  omnibus.brokers.core
    omnibus.brokers.dispatch  omnibus.brokers.ends  omnibus.brokers.events  omnibus.brokers.hello
    omnibus.brokers.invariants  omnibus.brokers.kinds  omnibus.brokers.lanes  omnibus.brokers.ledger
    omnibus.brokers.lending  omnibus.brokers.lockstep  omnibus.brokers.losses  omnibus.brokers.nodes
    omnibus.brokers.numbers
    omnibus.brokers.peers  omnibus.brokers.placement  omnibus.brokers.pools  omnibus.brokers.publishing
    omnibus.brokers.reading  omnibus.brokers.recall  omnibus.brokers.sessions  omnibus.brokers.sharing
    omnibus.brokers.shelf  omnibus.brokers.state  omnibus.brokers.status  omnibus.brokers.tasks
    omnibus.brokers.topics  omnibus.brokers.waiting  omnibus.brokers.workers
    omnibus.actors.attempts  omnibus.actors.children  omnibus.actors.commands  omnibus.actors.config
    omnibus.actors.inbox
    omnibus.actors.nodecore  omnibus.actors.nodelink  omnibus.actors.orders  omnibus.actors.restart
    omnibus.actors.timers
""")
"""The modules that decide without I/O."""

IMPURE = _names("""
    asyncio  multiprocessing  random  secrets  select  selectors  socket  subprocess  threading  time  zmq
""")
"""What a pure module may not import."""

SHELLS = _names("""
    omnibus.aio  omnibus.aiodriver  omnibus.bus  omnibus.driver  omnibus.links  omnibus.linkwatch  omnibus.sockets
    omnibus.brokers.auth  omnibus.brokers.shell
    omnibus.actors.aiolink  omnibus.actors.aiorunner  omnibus.actors.embed
    omnibus.actors.process  omnibus.actors.supervisor
    omnibus.commands.checks
""")
"""The modules that import ``zmq``; ``checks`` opens no socket, and tells a user what this libzmq can do."""

FACES = _names("""
    omnibus.cli  omnibus.demo
    omnibus.commands.base  omnibus.commands.audit  omnibus.commands.doctor  omnibus.commands.extras
    omnibus.commands.foreground  omnibus.commands.meshoptions  omnibus.commands.output
    omnibus.commands.processes  omnibus.commands.status  omnibus.commands.tables  omnibus.commands.top
    omnibus.commands.up  omnibus.commands.work  omnibus.commands.workoptions
""")
"""What people start, and nothing else imports: these may load the command line's libraries."""
