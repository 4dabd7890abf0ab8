/* What the plugin answers where no agent does.
 *
 * Invariants: VERSION is answered; DEL is written durably into the spool (sources/cni_spool.py): its name appears with
 * its whole content or not at all; STATUS succeeds where the agent was ready since the node's boot and is 50 where it was
 * not; all else is 11, "try again later" (CNI spec 1.1.0, section 5).
 */

#include "shim.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const versions[] = VERSIONS;
static const char *const commands[] = {"ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION"};
#define COUNT(list) (sizeof(list) / sizeof *(list))

/* --- JSON ------------------------------------------------------------------------------------ */

/* What go-cni takes for success in a DEL's error, whatever else it says (the second where CNI_NETNS is empty), and what
 * is said instead. */
static const char *const misleading[][2] = {
    {"not found", "missing"},
    {"no such file or directory", "missing file or directory"},
};

/* Where the text begins with such words: how long they are, and what to say instead. Else 0. */
static size_t misled(const unsigned char *text, size_t size, const char **instead)
{
    for (size_t at = 0; at < COUNT(misleading); at++) {
        size_t length = strlen(misleading[at][0]);

        *instead = misleading[at][1];
        if (size >= length && strncasecmp((const char *)text, misleading[at][0], length) == 0)
            return length;
    }
    return 0;
}

/* As a JSON string of ASCII. */
static void quote(struct bytes *to, const void *text, size_t size)
{
    const unsigned char *letters = text;
    const char *instead;

    say(to, "\"");
    for (size_t at = 0, length; at < size; at += length ? length : 1) {
        length = misled(letters + at, size - at, &instead);
        if (length) {
            say(to, instead);
            continue;
        }
        if (letters[at] == '"' || letters[at] == '\\')
            say(to, "\\");
        append(to, letters[at] >= 32 && letters[at] < 127 ? (const void *)(letters + at) : "?", 1);
    }
    say(to, "\"");
}

void failure(struct answer *answer, const char *version, unsigned code, const char *text, const struct bytes *details)
{
    char digits[16];
    struct bytes *out = &answer->out;

    snprintf(digits, sizeof digits, "%u", code);
    say(out, "{\"cniVersion\":");
    quote(out, version, strlen(version));
    say(out, ",\"code\":");
    say(out, digits);
    say(out, ",\"msg\":");
    quote(out, text, strlen(text));
    say(out, ",\"details\":");
    quote(out, details->at, details->size);
    say(out, "}\n");
    answer->code = 1;
}

static const char *known(const unsigned char *word, size_t size)
{
    for (size_t at = 0; at < COUNT(versions); at++)
        if (size == strlen(versions[at]) && memcmp(word, versions[at], size) == 0)
            return versions[at];
    return NULL;
}

/* The configuration's own "cniVersion" (prevResult has one too), else the lowest that every runtime reads. */
static const char *version_of(const struct bytes *text)
{
    static const char name[] = "cniVersion";
    long depth = 0;
    bool named = false; /* whether the last string that is no value is that name */
    unsigned char before = 0;

    for (size_t at = 0; at < text->size; at++) {
        unsigned char mark = text->at[at];
        if (mark == '"') {
            const unsigned char *word = text->at + at + 1;
            size_t end = at + 1;
            while (end < text->size && text->at[end] != '"')
                end += text->at[end] == '\\' ? 2 : 1;
            if (end > text->size)
                end = text->size;
            size_t size = end - at - 1;
            at = end;
            const char *version = known(word, size);
            if (depth == 1 && before == ':' && named && version != NULL)
                return version;
            if (before != ':')
                named = size == strlen(name) && memcmp(word, name, size) == 0;
        }
        depth += (mark == '{' || mark == '[') - (mark == '}' || mark == ']');
        if (!isspace(mark))
            before = mark;
    }
    return OLDEST;
}

/* --- files ----------------------------------------------------------------------------------- */

/* Whether the agent left its mark since this boot, in this network namespace (mark.py). */
static bool was_ready(const struct bytes *mark)
{
    struct bytes left = {0}, boot = {0}, why = {0};
    const char *teller = "/proc/sys/kernel/random/boot_id";
    char namespace[PATH_MAX + 1];

    if (!read_path((const char *)mark->at, &left, &why) || left.size == 0)
        return false;
    ssize_t length = readlink("/proc/self/ns/net", namespace, PATH_MAX);
    if (length < 0)
        return false;
    size_t size = (size_t)length;
    namespace[size++] = '\n';
    unsigned char *here = memmem(left.at, left.size, namespace, size);
    if (here == NULL)
        return false;
    size_t before = (size_t)(here - left.at), after = left.size - before - size;
    if (after > 1) { /* the file that tells the boot's ID, on a line of its own */
        teller = (const char *)here + size;
        here[size + after - 1] = '\0';
        if (strlen(teller) != after - 1)
            return false;
    }
    if (!read_path(teller, &boot, &why) || boot.size != before)
        return false;
    return before == 0 || memcmp(boot.at, left.at, before) == 0;
}

static bool sync_directory(const char *path)
{
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return directory >= 0 && fsync(directory) == 0;
}

/* Durably: the name appears with its whole content or not at all, and outlives a power loss. errno says why not. */
static bool leave(const struct bytes *spool, const struct bytes *request)
{
    struct bytes path = {0}, aside = {0}, parent = {0};
    struct timespec time;
    char name[64];

    if (mkdir((const char *)spool->at, 0700) < 0 && errno != EEXIST)
        return false;
    clock_gettime(CLOCK_REALTIME, &time);
    snprintf(name, sizeof name, "/%020lld-%ld", time.tv_sec * 1000000000LL + time.tv_nsec, (long)getpid());
    append(&path, spool->at, spool->size);
    say(&path, name);
    append(&aside, path.at, path.size);
    say(&aside, ".tmp");
    say(&path, ".del");
    int file = open((const char *)aside.at, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return false;
    if (!write_whole(file, request->at, request->size) || fsync(file) < 0 ||
        rename((const char *)aside.at, (const char *)path.at) < 0) {
        int error = errno;
        unlink((const char *)aside.at);
        errno = error;
        return false;
    }
    append(&parent, spool->at, spool->size);
    say(&parent, "/..");
    return sync_directory((const char *)spool->at) && sync_directory((const char *)parent.at);
}

/* --- the answer ------------------------------------------------------------------------------ */

static void list_versions(struct answer *answer, const char *version)
{
    struct bytes *out = &answer->out;

    say(out, "{\"cniVersion\":");
    quote(out, version, strlen(version));
    say(out, ",\"supportedVersions\":[");
    for (size_t at = 0; at < COUNT(versions); at++) {
        say(out, at > 0 ? "," : "");
        quote(out, versions[at], strlen(versions[at]));
    }
    say(out, "]}\n");
}

/* What is wrong with this command, empty where nothing is. */
static void judge(const char *command, struct bytes *text)
{
    append(text, "", 0);
    for (size_t at = 0; at < COUNT(commands); at++)
        if (strcmp(command, commands[at]) == 0)
            return;
    say(text, "CNI_COMMAND: expected one of ");
    for (size_t at = 0; at < COUNT(commands); at++) {
        say(text, at > 0 ? ", " : "");
        say(text, commands[at]);
    }
    say(text, "; found \"");
    say(text, command);
    say(text, "\"");
}

void alone(const char *command, const struct bytes *input, const struct bytes *request, const struct bytes *spool,
           const struct bytes *ready, struct bytes *why, struct answer *answer)
{
    const char *version = version_of(input);
    struct bytes wrong = {0};

    if (strcmp(command, "VERSION") == 0) {
        list_versions(answer, version);
        return;
    }
    if (strcmp(command, "DEL") == 0 && spool->size > 0) {
        if (leave(spool, request))
            return;
        const char *reason = strerror(errno);
        say(why, "; and the spool ");
        append(why, spool->at, spool->size);
        say(why, " can't be written: ");
        say(why, reason);
    }
    if (strcmp(command, "STATUS") == 0) {
        if (!was_ready(ready))
            failure(answer, version, 50,
                    "podwire's agent has not been ready since this node's boot: no pod can be attached", why);
        return;
    }
    judge(command, &wrong);
    if (wrong.size > 0)
        failure(answer, version, 4, (const char *)wrong.at, why);
    else
        failure(answer, version, 11, "podwire's agent on this node does not answer: try again later", why);
}
