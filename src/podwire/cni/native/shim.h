/* What the parts of the native CNI plugin share. See shim.c for its invariants. */

#ifndef PODWIRE_SHIM_H
#define PODWIRE_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of standard input, of an answer and of the file of settings; as in ../shim.py. */
#define LARGEST ((size_t)16 << 20)
#define LARGEST_TEXT "16 MiB"
#define VERSIONS {"0.4.0", "1.0.0", "1.1.0"}
#define OLDEST "0.4.0"

/* bytes.c: bytes that grow. Where anything was appended, `at[size]` is a NUL, so that a name is a C string too. */
struct bytes {
    unsigned char *at;
    size_t size, room;
};

void append(struct bytes *to, const void *what, size_t size);
void say(struct bytes *to, const char *text);
void reason(struct bytes *why, const char *text); /* in the place of any other */
void reason_of_system(struct bytes *why);         /* likewise, by errno */
bool read_whole(int file, struct bytes *into, struct bytes *why);
bool read_path(const char *path, struct bytes *into, struct bytes *why); /* errno is ENOENT where there is none */
bool write_whole(int file, const unsigned char *what, size_t size);      /* errno says why not */

/* call.c: one gRPC call. `deadline`: nanoseconds of CLOCK_MONOTONIC. */
struct answer {
    struct bytes out;
    uint64_t code;
};

int64_t now(void);
bool call(const char *path, const struct bytes *request, int64_t deadline, struct answer *answer, struct bytes *why);
void field(struct bytes *to, unsigned tag, const void *value, size_t size);

/* alone.c: what is answered without an agent. `spool` and `ready` may be empty: then there is none. */
void alone(const char *command, const struct bytes *input, const struct bytes *request, const struct bytes *spool,
           const struct bytes *ready, struct bytes *why, struct answer *answer);
void failure(struct answer *answer, const char *version, unsigned code, const char *text, const struct bytes *details);

/* Here, so that a compiler sees in every part that they are false. */
static inline bool failed(struct bytes *why, const char *text)
{
    reason(why, text);
    return false;
}

static inline bool failed_by_system(struct bytes *why)
{
    reason_of_system(why);
    return false;
}

#endif
