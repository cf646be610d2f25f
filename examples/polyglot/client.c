/* A whole OMB/1 client in C: it runs a Python function on a mesh, and prints what comes back.
 *
 *     cc client.c -o client -lzmq -lmsgpackc         (Debian: libzmq3-dev, libmsgpack-dev)
 *     ./client ipc:///path/to/broker 10              (10!; a third argument names another function)
 *
 * A message is ["OMB1", batch, blob ...]. The batch is a msgpack array of records, and a record is the array
 * [verb, id, head, body, blobs]. The specification is docs/spec/omb-1.md.
 */
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { HELLO = 1, ERROR = 3, BYE = 4, SUBMIT = 12, RESULT = 30, FAILED = 31 };

static void *sock;
static msgpack_sbuffer batch;
static msgpack_packer to;

static void pack_text(const char *text) { msgpack_pack_str_with_body(&to, text, strlen(text)); }

/* Begin a batch of one record; its head and its body are packed next. */
static void begin(int verb, int id) {
    msgpack_sbuffer_init(&batch);
    msgpack_packer_init(&to, &batch, msgpack_sbuffer_write);
    msgpack_pack_array(&to, 1);
    msgpack_pack_array(&to, 5);
    msgpack_pack_int(&to, verb), msgpack_pack_int(&to, id);
}

static void finish(void) {
    msgpack_pack_int(&to, 0);                                       /* the record owns no blobs */
    zmq_send(sock, "OMB1", 4, ZMQ_SNDMORE);
    zmq_send(sock, batch.data, batch.size, 0);
    msgpack_sbuffer_destroy(&batch);
}

/* Receive until something ends request `id`: print its value, or else its error, and say whether it was a value. */
static int print_answer(uint64_t id) {
    static char frame[1 << 20];
    for (;;) {
        int size = 0, more = 1;
        for (int place = 0; more; place++) {                        /* the signature, the batch, and blobs, not wanted here */
            int got = zmq_recv(sock, place == 1 ? frame : NULL, place == 1 ? sizeof frame : 0, 0);
            if (got < 0 || got > (int)sizeof frame) return puts("no answer, or one that is too long"), 0;
            if (place == 1) size = got;
            zmq_getsockopt(sock, ZMQ_RCVMORE, &more, &(size_t){sizeof more});
        }
        msgpack_unpacked records, value;                            /* freed by the end of the program */
        msgpack_unpacked_init(&records), msgpack_unpacked_init(&value);
        msgpack_unpack_next(&records, frame, size, NULL);
        for (uint32_t i = 0; i < records.data.via.array.size; i++) {
            msgpack_object *field = records.data.via.array.ptr[i].via.array.ptr, *body = &field[3];
            uint64_t verb = field[0].via.u64, about = field[1].via.u64;
            if ((about != id || verb < RESULT || verb > FAILED) && verb != ERROR) continue;    /* WELCOME, PING, ... */
            int good = verb == RESULT && body->type == MSGPACK_OBJECT_BIN;
            if (good) msgpack_unpack_next(&value, body->via.bin.ptr, body->via.bin.size, NULL);
            msgpack_object_print(stdout, good ? value.data : field[2]);
            return puts(""), good;
        }
    }
}

int main(int argc, char **argv) {
    unsigned char session[16], arguments[] = {0x91, argc > 2 ? atoi(argv[2]) & 0x7f : 10};     /* msgpack: [number] */
    FILE *chance = fopen("/dev/urandom", "rb");
    if (argc < 2 || !chance || !fread(session, sizeof session, 1, chance)) return 2;
    void *context = zmq_ctx_new();
    sock = zmq_socket(context, ZMQ_DEALER);
    zmq_setsockopt(sock, ZMQ_RCVTIMEO, &(int){10000}, sizeof(int));
    zmq_connect(sock, argv[1]);

    begin(HELLO, 0);                                                /* who speaks: a client, and its new session */
    msgpack_pack_map(&to, 3);
    pack_text("omb"), msgpack_pack_int(&to, 1);
    pack_text("role"), pack_text("client");
    pack_text("session"), msgpack_pack_bin_with_body(&to, session, sizeof session);
    msgpack_pack_nil(&to);
    finish();

    begin(SUBMIT, 1);                                               /* what to run, and its arguments */
    msgpack_pack_map(&to, 1), pack_text("fn"), pack_text(argc > 3 ? argv[3] : "math:factorial");
    msgpack_pack_bin_with_body(&to, arguments, sizeof arguments);
    finish();

    int good = print_answer(1);

    begin(BYE, 0);
    msgpack_pack_nil(&to), msgpack_pack_nil(&to);
    finish();
    zmq_close(sock);
    zmq_ctx_term(context);
    return !good;
}
