"""A client of a mesh in two messages, without Omnibus: pyzmq and msgpack, and a REQ socket.

``python minimal_req.py ipc:///path/to/broker`` asks, and is answered when all that it asked for has ended.
"""

import os
import sys

import msgpack
import zmq

HELLO, BYE, SUBMIT, RESULT, FAILED = 1, 4, 12, 30, 31

socket = zmq.Context().socket(zmq.REQ)
socket.connect(sys.argv[1])
hello = [HELLO, 0, {"omb": 1, "role": "client", "session": os.urandom(16)}, None, 0]
tasks = [[SUBMIT, n, {"fn": "math:factorial"}, msgpack.packb([n]), 0] for n in (3, 5, 10)]
socket.send_multipart([b"OMB1", msgpack.packb([hello, *tasks])])
_, batch, *blobs = socket.recv_multipart()
for verb, number, head, body, _ in msgpack.unpackb(batch):
    if verb == RESULT:
        print(number, msgpack.unpackb(body))
    elif verb == FAILED:
        print(number, head["error"], head["message"])
socket.send_multipart([b"OMB1", msgpack.packb([[BYE, 0, None, None, 0]])])
