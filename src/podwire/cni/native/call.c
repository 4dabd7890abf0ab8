/* One unary gRPC call over a unix socket, its HTTP/2 (RFC 9113) framed by hand.
 *
 * Invariants:
 * - An answer counts only when a whole message came with the end of its stream; anything else is a reason why none did.
 * - The deadline holds for the whole call, however small the parts in which bytes go and come.
 * - A frame is at most FRAME bytes, since we never allow more; an answer at most LARGEST.
 * - Headers are never read: a gRPC error comes without a message. So CONTINUATION needs no care, nor does PUSH_PROMISE.
 */

#include "shim.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum kind { DATA, HEADERS, RST_STREAM = 3, SETTINGS, PING = 6, GOAWAY, WINDOW_UPDATE };
enum flag { END_STREAM = 1, ACK = 1, END_HEADERS = 4, PADDED = 8 };
enum { HEAD = 9, FRAME = 16384, WINDOW = 65535, INITIAL_WINDOW_SIZE = 4 };

static const uint32_t MOST = 0x7fffffff;
static const int64_t SECOND = 1000000000;
static const char NO_HTTP2[] = "the agent does not speak HTTP/2";

struct frame {
    unsigned kind, flags;
    uint32_t stream;
    const unsigned char *payload;
    size_t size;
};

/* The connection, and of what has arrived the part from `from` to `to` that is not used yet. */
struct arriving {
    int socket;
    int64_t deadline;
    size_t from, to;
    unsigned char held[4 * FRAME];
};

/* --- bytes in and out ------------------------------------------------------------------------ */

int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static bool in_time(int64_t deadline, struct bytes *why)
{
    return now() < deadline || failed(why, "timed out");
}

static bool wait_for(int socket, short events, int64_t deadline, struct bytes *why)
{
    for (;;) {
        int64_t left = deadline - now();
        if (left <= 0)
            return failed(why, "timed out");
        struct timespec time = {left / SECOND, left % SECOND};
        struct pollfd it = {socket, events, 0};
        int ready = ppoll(&it, 1, &time, NULL);
        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR)
            return failed_by_system(why);
    }
}

static bool send_all(int socket, const struct bytes *what, int64_t deadline, struct bytes *why)
{
    for (size_t at = 0; at < what->size;) {
        if (!in_time(deadline, why))
            return false;
        ssize_t size = send(socket, what->at + at, what->size - at, MSG_NOSIGNAL);
        if (size >= 0)
            at += (size_t)size;
        else if (errno == EAGAIN) {
            if (!wait_for(socket, POLLOUT, deadline, why))
                return false;
        } else if (errno != EINTR)
            return failed_by_system(why);
    }
    return true;
}

/* At least one byte more. */
static bool receive(struct arriving *it, struct bytes *why)
{
    memmove(it->held, it->held + it->from, it->to - it->from); /* less than a frame, so that there is room */
    it->to -= it->from;
    it->from = 0;
    for (;;) {
        if (!in_time(it->deadline, why))
            return false;
        ssize_t size = recv(it->socket, it->held + it->to, sizeof it->held - it->to, 0);
        if (size > 0) {
            it->to += (size_t)size;
            return true;
        }
        if (size == 0)
            return failed(why, "the agent closed the connection");
        if (errno == EAGAIN) {
            if (!wait_for(it->socket, POLLIN, it->deadline, why))
                return false;
        } else if (errno != EINTR)
            return failed_by_system(why);
    }
}

/* --- frames ---------------------------------------------------------------------------------- */

static uint32_t number(const unsigned char *at) /* of four bytes */
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Whether a frame of this type may have this size (RFC 9113, 4.2 and 6). */
static bool fits(unsigned kind, size_t size)
{
    if (size > FRAME)
        return false;
    switch (kind) {
    case SETTINGS:
        return size % 6 == 0;
    case GOAWAY:
        return size >= 8;
    case PING:
        return size == 8;
    case RST_STREAM:
    case WINDOW_UPDATE:
        return size == 4;
    default:
        return true;
    }
}

/* Its payload holds until the next one is asked for. */
static bool next_frame(struct arriving *it, struct frame *frame, struct bytes *why)
{
    while (it->to - it->from < HEAD)
        if (!receive(it, why))
            return false;
    const unsigned char *head = it->held + it->from;
    size_t size = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    if (!fits(head[3], size))
        return failed(why, NO_HTTP2);
    while (it->to - it->from < HEAD + size)
        if (!receive(it, why))
            return false;
    head = it->held + it->from;
    *frame = (struct frame){head[3], head[4], number(head + 5) & MOST, head + HEAD, size};
    it->from += HEAD + size;
    return true;
}

static void put_number(struct bytes *to, uint32_t value)
{
    unsigned char four[4];
    for (unsigned at = 0; at < sizeof four; at++)
        four[at] = (unsigned char)(value >> (24 - 8 * at));
    append(to, four, sizeof four);
}

static void put_frame(struct bytes *to, enum kind kind, unsigned flags, uint32_t stream, const void *payload,
                      size_t size)
{
    unsigned char head[] = {(unsigned char)(size >> 16), (unsigned char)(size >> 8), (unsigned char)size,
                            (unsigned char)kind, (unsigned char)flags};
    append(to, head, sizeof head);
    put_number(to, stream);
    append(to, payload, size);
}

/* A literal field, not indexed (RFC 7541, 6.2.2). Both texts are shorter than 127 bytes. */
static void put_header(struct bytes *to, const char *name, const char *value)
{
    unsigned char size = (unsigned char)strlen(name);
    append(to, "", 1);
    append(to, &size, 1);
    say(to, name);
    size = (unsigned char)strlen(value);
    append(to, &size, 1);
    say(to, value);
}

/* What a client says first: that an answer of any size needs no window from us, and whom it calls. */
static void put_opening(struct bytes *to)
{
    struct bytes settings = {0}, window = {0}, headers = {0};

    say(to, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    append(&settings, "\0\4", 2);
    put_number(&settings, MOST);
    put_frame(to, SETTINGS, 0, 0, settings.at, settings.size);
    put_number(&window, MOST - WINDOW);
    put_frame(to, WINDOW_UPDATE, 0, 0, window.at, window.size);
    say(&headers, "\x83\x86"); /* :method POST, :scheme http (RFC 7541, appendix A) */
    put_header(&headers, ":path", "/podwire.v1.Cni/Call");
    put_header(&headers, ":authority", "localhost");
    put_header(&headers, "content-type", "application/grpc");
    put_header(&headers, "te", "trailers");
    put_frame(to, HEADERS, END_HEADERS, 1, headers.at, headers.size);
}

/* --- the call -------------------------------------------------------------------------------- */

/* What the agent is ready to take, in all and in our stream (RFC 9113, 5.2); `initial`: of a new stream. */
struct windows {
    int64_t all, stream, initial;
};

/* As much of the body as the agent takes now, as frames. `sent`: how much went before; moved on. */
static void put_body(struct bytes *to, const struct bytes *body, size_t *sent, struct windows *open)
{
    while (*sent < body->size) {
        int64_t least = open->all < open->stream ? open->all : open->stream;
        if (least <= 0)
            return;
        size_t part = body->size - *sent;
        if (part > FRAME)
            part = FRAME;
        if ((uint64_t)least < part)
            part = (size_t)least;
        bool last = *sent + part == body->size;
        put_frame(to, DATA, last ? END_STREAM : 0, 1, body->at + *sent, part);
        *sent += part;
        open->all -= (int64_t)part;
        open->stream -= (int64_t)part;
    }
}

static bool take_data(const struct frame *frame, struct bytes *arrived, struct bytes *why)
{
    const unsigned char *part = frame->payload;
    size_t size = frame->size;

    if (frame->flags & PADDED) { /* it begins with the length of its padding (RFC 9113, 6.1) */
        if (size == 0 || part[0] >= size)
            return failed(why, NO_HTTP2);
        size -= (size_t)part[0] + 1;
        part++;
    }
    if (size > LARGEST - arrived->size)
        return failed(why, "the agent's answer has more than " LARGEST_TEXT);
    append(arrived, part, size);
    return true;
}

/* Folds a frame: into what arrived, into the windows, or into what has to be said. */
static bool take(const struct frame *frame, struct bytes *arrived, struct windows *open, struct bytes *out,
                 struct bytes *why)
{
    switch (frame->kind) {
    case SETTINGS:
        if (frame->flags & ACK)
            return true;
        put_frame(out, SETTINGS, ACK, 0, NULL, 0);
        for (const unsigned char *at = frame->payload; at < frame->payload + frame->size; at += 6)
            if (at[0] == 0 && at[1] == INITIAL_WINDOW_SIZE) { /* it moves open windows too */
                int64_t before = open->initial;
                open->initial = number(at + 2);
                open->stream += open->initial - before;
            }
        return true;
    case PING:
        if (!(frame->flags & ACK))
            put_frame(out, PING, ACK, 0, frame->payload, frame->size);
        return true;
    case WINDOW_UPDATE:
        if (frame->stream == 0)
            open->all += number(frame->payload) & MOST;
        else if (frame->stream == 1)
            open->stream += number(frame->payload) & MOST;
        return true;
    case RST_STREAM:
        return frame->stream != 1 || failed(why, "the agent dropped the call");
    case GOAWAY: /* with the last stream that it still serves */
        return (number(frame->payload) & MOST) != 0 || failed(why, "the agent dropped the call");
    case DATA:
        return frame->stream != 1 || take_data(frame, arrived, why);
    default:
        return true;
    }
}

/* Until the end of our stream. `arrived`: a gRPC message with its head. */
static bool converse(struct arriving *arriving, const struct bytes *body, struct bytes *arrived, struct bytes *why)
{
    struct bytes out = {0};
    struct windows open = {WINDOW, WINDOW, WINDOW};
    struct frame frame = {0};
    size_t sent = 0;

    put_opening(&out);
    for (;;) {
        put_body(&out, body, &sent, &open);
        if (!send_all(arriving->socket, &out, arriving->deadline, why))
            return false;
        out.size = 0;
        if (!next_frame(arriving, &frame, why) || !take(&frame, arrived, &open, &out, why))
            return false;
        if (frame.kind <= HEADERS && frame.stream == 1 && frame.flags & END_STREAM)
            return true;
    }
}

static bool connect_to(const char *path, struct arriving *arriving, struct bytes *why)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof address.sun_path)
        return failed(why, "AF_UNIX path too long");
    strcpy(address.sun_path, path);
    arriving->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (arriving->socket < 0 || connect(arriving->socket, (struct sockaddr *)&address, sizeof address) < 0)
        return failed_by_system(why);
    return true;
}

/* --- its messages (cni.proto) ---------------------------------------------------------------- */

static void put_varint(struct bytes *to, uint64_t value)
{
    unsigned char byte;

    for (; value > 127; value >>= 7) {
        byte = (unsigned char)(value & 127) | 128;
        append(to, &byte, 1);
    }
    byte = (unsigned char)value;
    append(to, &byte, 1);
}

/* A protobuf field of bytes. */
void field(struct bytes *to, unsigned tag, const void *value, size_t size)
{
    put_varint(to, tag << 3 | 2);
    put_varint(to, size);
    append(to, value, size);
}

static bool varint(const struct bytes *message, size_t *at, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 70 && *at < message->size; shift += 7) {
        unsigned char byte = message->at[(*at)++];
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

/* CniReply, behind the head of a gRPC message: one byte that is 0, and its size. */
static bool read_answer(const struct bytes *message, struct answer *answer, struct bytes *why)
{
    static const char unreadable[] = "the agent's answer can't be read";
    uint64_t key, value;

    if (message->size < 5 || message->at[0] != 0 || number(message->at + 1) != message->size - 5)
        return failed(why, "the agent refused the call");
    for (size_t at = 5; at < message->size;) {
        if (!varint(message, &at, &key) || !varint(message, &at, &value))
            return failed(why, unreadable);
        unsigned type = key & 7;
        if ((type != 0 && type != 2) || (type == 2 && value > message->size - at))
            return failed(why, unreadable);
        if (key == (1 << 3 | 2)) {
            answer->out.size = 0;
            append(&answer->out, message->at + at, (size_t)value);
        } else if (key == 2 << 3)
            answer->code = value;
        if (type == 2)
            at += (size_t)value;
    }
    return true;
}

bool call(const char *path, const struct bytes *request, int64_t deadline, struct answer *answer, struct bytes *why)
{
    static struct arriving arriving;
    struct bytes body = {0}, arrived = {0};

    arriving.deadline = deadline;
    append(&body, "", 1);
    put_number(&body, (uint32_t)request->size); /* far below 2^32: LARGEST, and what the kernel takes of variables */
    append(&body, request->at, request->size);
    if (!in_time(deadline, why) || !connect_to(path, &arriving, why) || !converse(&arriving, &body, &arrived, why))
        return false;
    if (read_answer(&arrived, answer, why))
        return true;
    *answer = (struct answer){0}; /* of half an answer nothing is left */
    return false;
}
