/* podwire's CNI plugin, native: hands one call of the runtime to the node's agent, and answers alone where none does.
 *
 * Invariants:
 * - The same program as ../shim.py, where the rules stand: the same bytes and exit codes for the same calls. What
 *   changes here changes there, and the tests run both.
 * - Nothing is parsed here that the agent can parse.
 * - Whatever happens, what is printed is the agent's answer or one JSON object.
 * - Linked statically: no library of the node's, whatever its C library is.
 * - One call, then the process ends: memory and files are given back by that. Sizes are checked before they are used.
 */

#include "shim.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

extern char **environ;

static const double LONGEST = 86400;

/* --- what the runtime gave us ---------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Whether one of these entries has the name of `entry`, which has one. */
static bool named(char **entries, size_t count, const char *entry)
{
    size_t name = (size_t)(strchr(entry, '=') - entry) + 1;

    for (size_t at = 0; at < count; at++)
        if (strncmp(entries[at], entry, name) == 0)
            return true;
    return false;
}

/* CniRequest (cni.proto): the variables named CNI_…, sorted, of two with one name the first; then standard input. */
static void write_request(struct bytes *request, const struct bytes *input)
{
    struct bytes list = {0};
    size_t count = 0;

    for (char **entry = environ; *entry != NULL; entry++) {
        if (strncmp(*entry, "CNI_", 4) != 0 || strchr(*entry, '=') == NULL)
            continue;
        if (count > 0 && named((char **)list.at, count, *entry))
            continue;
        append(&list, entry, sizeof *entry);
        count++;
    }
    char **entries = (char **)list.at;
    if (count > 0)
        qsort(entries, count, sizeof *entries, by_bytes);
    for (size_t at = 0; at < count; at++)
        field(request, 1, entries[at], strlen(entries[at]));
    field(request, 2, input->at, input->size);
}

/* --- its settings ---------------------------------------------------------------------------- */

static void strip(const unsigned char **at, size_t *size)
{
    while (*size > 0 && isspace((*at)[0])) {
        ++*at;
        --*size;
    }
    while (*size > 0 && isspace((*at)[*size - 1]))
        --*size;
}

/* The value of the last line NAME=VALUE; empty where there is none. */
static void setting(const struct bytes *text, const char *name, struct bytes *value)
{
    const unsigned char *line = text->at, *end = text->at + text->size;

    value->size = 0;
    append(value, "", 0);
    while (line < end) {
        const unsigned char *stop = memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL)
            stop = end;
        const unsigned char *equals = memchr(line, '=', (size_t)(stop - line));
        if (equals != NULL && memchr(equals, '\0', (size_t)(stop - equals)) == NULL) {
            const unsigned char *left = line, *right = equals + 1;
            size_t left_size = (size_t)(equals - line), right_size = (size_t)(stop - right);
            strip(&left, &left_size);
            strip(&right, &right_size);
            if (left_size == strlen(name) && memcmp(left, name, left_size) == 0) {
                value->size = 0;
                append(value, right, right_size);
            }
        }
        line = stop + 1;
    }
}

/* From beside the plugin as it was called, else from beside what that links to. */
static bool read_settings(struct bytes *path, struct bytes *text, struct bytes *why)
{
    for (;;) {
        struct bytes file = {0}, unread = {0};
        char target[PATH_MAX];

        append(&file, path->at, path->size);
        say(&file, ".conf");
        if (read_path((const char *)file.at, text, &unread))
            return true;
        int error = errno;
        ssize_t size = readlink((const char *)path->at, target, sizeof target);
        if (error != ENOENT || size < 0) {
            reason(why, (const char *)file.at);
            say(why, ": ");
            append(why, unread.at, unread.size);
            return false;
        }
        const char *slash = strrchr((const char *)path->at, '/');
        size_t directory = target[0] == '/' || slash == NULL ? 0 : (size_t)(slash - (const char *)path->at) + 1;
        path->size = directory;
        append(path, target, (size_t)size);
    }
}

static bool absolute(const struct bytes *path, const char *name, const struct bytes *value, struct bytes *why)
{
    if (value->size > 0 && value->at[0] == '/')
        return true;
    reason(why, (const char *)path->at);
    say(why, ".conf: expected a line ");
    say(why, name);
    say(why, "=/PATH");
    return false;
}

/* Seconds for the call of an agent. */
static bool limit(const char *command, const struct bytes *settings, double *seconds, struct bytes *why)
{
    struct bytes name = {0}, value = {0};
    size_t dots = 0, digits = 0;

    for (const char *letter = command; *letter != '\0'; letter++) {
        char small = (char)tolower((unsigned char)*letter);
        append(&name, &small, 1);
    }
    say(&name, "_seconds");
    setting(settings, (const char *)name.at, &value);
    *seconds = strcmp(command, "DEL") == 0 ? 3 : strcmp(command, "STATUS") == 0 ? 2 : 50;
    if (strcmp(command, "VERSION") == 0)
        *seconds = 1;
    if (value.size == 0)
        return true;
    for (size_t at = 0; at < value.size; at++) {
        dots += value.at[at] == '.';
        digits += isdigit(value.at[at]) != 0;
    }
    if (dots > 1 || digits == 0 || dots + digits != value.size) {
        reason(why, (const char *)name.at);
        say(why, ": expected a number of seconds");
        return false;
    }
    *seconds = strtod((const char *)value.at, NULL);
    if (*seconds > LONGEST)
        *seconds = LONGEST;
    return true;
}

/* --- one call of the plugin ------------------------------------------------------------------ */

static bool by_agent(const char *command, const struct bytes *request, struct bytes *spool, struct bytes *ready,
                     struct answer *answer, struct bytes *why)
{
    struct bytes path = {0}, settings = {0}, socket = {0}, found = {0};
    double seconds;

    /* As the runtime called it: /proc/self/exe would be what a link leads to. */
    const char *called = (const char *)getauxval(AT_EXECFN);
    say(&path, called != NULL ? called : "");
    if (!read_settings(&path, &settings, why))
        return false;
    setting(&settings, "socket", &socket);
    setting(&settings, "spool", &found);
    if (!absolute(&path, "socket", &socket, why) || !absolute(&path, "spool", &found, why))
        return false;
    append(spool, found.at, found.size);
    setting(&settings, "ready", ready);
    if (!limit(command, &settings, &seconds, why))
        return false;
    return call((const char *)socket.at, request, now() + (int64_t)(seconds * 1e9), answer, why);
}

int main(void)
{
    struct bytes input = {0}, request = {0}, spool = {0}, ready = {0}, why = {0};
    struct answer answer = {0};
    const char *command = getenv("CNI_COMMAND");

    signal(SIGPIPE, SIG_IGN);
    if (command == NULL)
        command = "";
    append(&spool, "", 0);
    append(&ready, "", 0);
    if (!read_whole(STDIN_FILENO, &input, &why)) {
        failure(&answer, OLDEST, 5, "standard input can't be read", &why); /* half of it says nothing */
    } else {
        write_request(&request, &input);
        if (!by_agent(command, &request, &spool, &ready, &answer, &why))
            alone(command, &input, &request, &spool, &ready, &why, &answer);
    }
    if (!write_whole(STDOUT_FILENO, answer.out.at, answer.out.size))
        answer.code = 1;
    _exit(answer.code > 255 ? 255 : (int)answer.code);
}
