"""A whole client of a mesh without Omnibus: pyzmq and msgpack, and a DEALER socket.

``python minimal_dealer.py ipc:///path/to/broker`` submits three tasks at once and prints their results as they come.
"""

import os
import sys

import msgpack
import zmq

HELLO, BYE, PING, PONG, SUBMIT, RESULT = 1, 4, 5, 6, 12, 30


def send(*records: list[object]) -> None:
    socket.send_multipart([b"OMB1", msgpack.packb(records)])


socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
send([HELLO, 0, {"omb": 1, "role": "client", "session": os.urandom(16)}, None, 0])
send(*([SUBMIT, n, {"fn": "math:factorial"}, msgpack.packb([n]), 0] for n in (3, 5, 10)))
waiting = 3
while waiting:
    _, batch, *blobs = socket.recv_multipart()
    for verb, number, head, body, _ in msgpack.unpackb(batch):
        if verb == PING:
            send([PONG, number, None, None, 0])
        elif number:
            print(number, msgpack.unpackb(body) if verb == RESULT else head)
            waiting -= 1
send([BYE, 0, None, None, 0])
