/* Bytes that grow, and files read and written whole.
 *
 * Invariants: append() and say() never fail to their callers: where memory ends, the runtime gets an answer that it can
 * read, and the process ends. What is read is bounded by LARGEST. An interrupted call goes on.
 */

#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void out_of_memory(void)
{
    static const char said[] = "{\"cniVersion\":\"" OLDEST "\",\"code\":11,\"msg\":\"podwire's plugin has no memory: "
                               "try again later\",\"details\":\"\"}\n";
    write_whole(STDOUT_FILENO, (const unsigned char *)said, sizeof said - 1);
    _exit(1);
}

void append(struct bytes *to, const void *what, size_t size)
{
    if (size >= SIZE_MAX / 4 - to->size)
        out_of_memory();
    if (to->size + size + 1 > to->room) {
        size_t room = 2 * (to->size + size) + 64;
        unsigned char *larger = realloc(to->at, room);
        if (larger == NULL)
            out_of_memory();
        to->at = larger;
        to->room = room;
    }
    if (size > 0)
        memcpy(to->at + to->size, what, size);
    to->size += size;
    to->at[to->size] = '\0';
}

void say(struct bytes *to, const char *text)
{
    append(to, text, strlen(text));
}

void reason(struct bytes *why, const char *text)
{
    why->size = 0;
    say(why, text);
}

void reason_of_system(struct bytes *why)
{
    reason(why, strerror(errno));
}

bool read_whole(int file, struct bytes *into, struct bytes *why)
{
    unsigned char part[65536];
    ssize_t size;

    into->size = 0;
    append(into, "", 0);
    while ((size = read(file, part, sizeof part)) != 0) {
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0)
            return failed_by_system(why);
        if ((size_t)size > LARGEST - into->size)
            return failed(why, "expected at most " LARGEST_TEXT);
        append(into, part, (size_t)size);
    }
    return true;
}

bool read_path(const char *path, struct bytes *into, struct bytes *why)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        int error = errno;
        reason_of_system(why);
        errno = error;
        return false;
    }
    bool done = read_whole(file, into, why);
    close(file);
    if (!done)
        errno = 0;
    return done;
}

bool write_whole(int file, const unsigned char *what, size_t size)
{
    while (size > 0) {
        ssize_t written = write(file, what, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return false;
        what += written;
        size -= (size_t)written;
    }
    return true;
}
