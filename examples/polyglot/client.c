/* A whole OMB/1 client in C: it runs math:factorial on a mesh and prints what comes back.
 *
 *     cc client.c -o client -lzmq -lmsgpackc         (Debian: libzmq3-dev, libmsgpack-dev)
 *     ./client ipc:///path/to/broker 10
 *
 * A message is ["OMB1", batch, blob ...]; the batch is a msgpack array of records, and a record is the array
 * [verb, id, head, body, blobs]. The specification is docs/spec/omb-1.md.
 */
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum verb { HELLO = 1, WELCOME = 2, ERROR = 3, BYE = 4, SUBMIT = 12, RESULT = 30, FAILED = 31 };

static void pack_text(msgpack_packer *to, const char *text) { msgpack_pack_str_with_body(to, text, strlen(text)); }
static void pack_bytes(msgpack_packer *to, const void *bytes, size_t size) { msgpack_pack_bin_with_body(to, bytes, size); }

/* Send one record: verb and id as numbers, head and body as msgpack that was packed before, and no blobs. */
static void send_record(void *socket, enum verb verb, int id, const msgpack_sbuffer *head, const msgpack_sbuffer *body) {
    msgpack_sbuffer batch;
    msgpack_packer to;
    msgpack_sbuffer_init(&batch);
    msgpack_packer_init(&to, &batch, msgpack_sbuffer_write);
    msgpack_pack_array(&to, 1);
    msgpack_pack_array(&to, 5);
    msgpack_pack_int(&to, verb);
    msgpack_pack_int(&to, id);
    if (head) msgpack_sbuffer_write(&batch, head->data, head->size); else msgpack_pack_nil(&to);
    if (body) pack_bytes(&to, body->data, body->size); else msgpack_pack_nil(&to);
    msgpack_pack_int(&to, 0);
    zmq_send(socket, "OMB1", 4, ZMQ_SNDMORE);
    zmq_send(socket, batch.data, batch.size, 0);
    msgpack_sbuffer_destroy(&batch);
}

/* Receive messages until one ends request `id`: print its value or its error, and say whether it was a value. */
static int print_answer(void *socket, int id) {
    for (;;) {
        zmq_msg_t frames[2];                        /* signature and batch; blobs would follow, and are not wanted here */
        int more = 1;
        for (int i = 0; more; i++) {
            zmq_msg_t *frame = &frames[i < 2 ? i : 0];
            zmq_msg_init(frame);
            if (zmq_msg_recv(frame, socket, 0) < 0) return printf("nobody answers\n"), 0;
            more = zmq_msg_more(frame);
        }
        msgpack_unpacked batch, value;
        msgpack_unpacked_init(&batch), msgpack_unpacked_init(&value);
        msgpack_unpack_next(&batch, zmq_msg_data(&frames[1]), zmq_msg_size(&frames[1]), NULL);
        for (uint32_t i = 0; i < batch.data.via.array.size; i++) {
            msgpack_object *field = batch.data.via.array.ptr[i].via.array.ptr;
            uint64_t verb = field[0].via.u64, about = field[1].via.u64;
            if (verb != RESULT && verb != FAILED && verb != ERROR) continue;    /* WELCOME, PING, and what is new */
            if (about != (uint64_t)id && about != 0) continue;
            int good = verb == RESULT && field[3].type == MSGPACK_OBJECT_BIN;
            if (good) msgpack_unpack_next(&value, field[3].via.bin.ptr, field[3].via.bin.size, NULL);
            msgpack_object_print(stdout, good ? value.data : field[2]);
            return printf("\n"), good;
        }
        msgpack_unpacked_destroy(&batch), msgpack_unpacked_destroy(&value);
        zmq_msg_close(&frames[0]), zmq_msg_close(&frames[1]);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: %s ADDRESS NUMBER\n", argv[0]), 2;
    int patience = 10000, linger = 1000;
    unsigned char session[16];                      /* names this life of the client: random, for others must not guess it */
    FILE *random = fopen("/dev/urandom", "rb");
    if (!random || fread(session, sizeof session, 1, random) != 1) return 2;

    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &patience, sizeof patience);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_connect(socket, argv[1]);

    msgpack_sbuffer hello, what, arguments;
    msgpack_packer to;
    msgpack_sbuffer_init(&hello);
    msgpack_packer_init(&to, &hello, msgpack_sbuffer_write);
    msgpack_pack_map(&to, 3);
    pack_text(&to, "omb"), msgpack_pack_int(&to, 1);
    pack_text(&to, "role"), pack_text(&to, "client");
    pack_text(&to, "session"), pack_bytes(&to, session, sizeof session);
    send_record(socket, HELLO, 0, &hello, NULL);

    msgpack_sbuffer_init(&what);
    msgpack_packer_init(&to, &what, msgpack_sbuffer_write);
    msgpack_pack_map(&to, 1);
    pack_text(&to, "fn"), pack_text(&to, "math:factorial");
    msgpack_sbuffer_init(&arguments);
    msgpack_packer_init(&to, &arguments, msgpack_sbuffer_write);
    msgpack_pack_array(&to, 1), msgpack_pack_int(&to, atoi(argv[2]));
    send_record(socket, SUBMIT, 1, &what, &arguments);

    int good = print_answer(socket, 1);
    send_record(socket, BYE, 0, NULL, NULL);
    zmq_close(socket);
    zmq_ctx_term(context);
    return !good;
}
