/* What the bench's packets come from, in plain C, so that the kernel is most of what is measured.
 *
 *   load serve PORT NAMESPACE…               answers each byte with a byte, in each of these network namespaces (paths),
 *                                            until it is killed; says "ready"
 *   load swallow PORT NAMESPACE…             takes what it is sent there, and says nothing
 *   load connect ADDRESS PORT SECONDS        connects, asks once, cuts the connection, again and again
 *   load ask ADDRESS PORT SECONDS            asks again and again on one connection
 *   load send ADDRESS PORT SECONDS           sends as much as is taken on one connection
 *   load clients ADDRESS PORT FIRST COUNT    connects once from each of COUNT addresses, the first being FIRST
 *
 * The last four print how many worked (bytes that have arrived, for `send`) and the seconds that took. All of them run on one processor, before everybody
 * else where the kernel allows it: both ends and the packets between take turns there, so another's work disturbs
 * little. A connection that fails ends the program with its reason: a rate with failures in it would mean nothing.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SHARE = 128 << 10 }; /* bytes of a stream that go, or come, at a time */
static int one = 1;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void alone(void) {
    cpu_set_t allowed, last;
    struct sched_param first = {.sched_priority = 10};
    int cpu = 0;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &allowed)) cpu = i;
    CPU_ZERO(&last);
    CPU_SET(cpu, &last);
    sched_setaffinity(0, sizeof last, &last);
    sched_setscheduler(0, SCHED_FIFO, &first); /* refused to whom may not: the figures are less steady then */
}

static int listening(int port, const char *space) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port)};
    int there = open(space, O_RDONLY | O_CLOEXEC), it;
    if (there < 0 || setns(there, CLONE_NEWNET)) fail(space);
    close(there);
    it = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(it, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(it, (void *)&here, sizeof here) || listen(it, 4096)) fail("listen");
    return it;
}

/* `swallows`: all that comes, without an answer. */
static void serve(int port, int count, char **spaces, int swallows) {
    struct epoll_event wanted = {.events = EPOLLIN}, got[256];
    int waiting = epoll_create1(0), last = -1;
    static char taken[SHARE];
    for (int i = 0; i < count; i++) {
        wanted.data.fd = last = listening(port, spaces[i]);
        epoll_ctl(waiting, EPOLL_CTL_ADD, last, &wanted);
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        int stirred = epoll_wait(waiting, got, 256, -1);
        for (int i = 0; i < stirred; i++) {
            int it = got[i].data.fd, client;
            if (it <= last) { /* those that listen came first */
                while ((client = accept4(it, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    wanted.data.fd = client;
                    epoll_ctl(waiting, EPOLL_CTL_ADD, client, &wanted);
                }
                continue;
            }
            ssize_t length = read(it, taken, swallows ? sizeof taken : 1);
            if (length < 0 && errno == EAGAIN) continue;
            if (length <= 0 || (!swallows && write(it, taken, 1) != 1)) close(it);
        }
    }
}

static int connected(const struct sockaddr_in *from, const struct sockaddr_in *to) {
    struct linger cut = {1, 0};
    int it = socket(AF_INET, SOCK_STREAM, 0);
    if (it < 0) fail("socket");
    setsockopt(it, SOL_SOCKET, SO_LINGER, &cut, sizeof cut);
    setsockopt(it, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (from && bind(it, (const void *)from, sizeof *from)) fail("bind");
    if (connect(it, (const void *)to, sizeof *to)) fail("connect");
    return it;
}

static void ask(int it) {
    char byte = 'x';
    if (write(it, &byte, 1) != 1 || read(it, &byte, 1) != 1) fail("ask");
}

/* How many bytes have arrived: the other end closes once it has come to the end. */
static long sent(int it, double end) {
    static char share[SHARE];
    long done = 0;
    while (now() < end) {
        ssize_t length = write(it, share, sizeof share);
        if (length < 0) fail("send");
        done += length;
    }
    if (shutdown(it, SHUT_WR) || read(it, share, 1) != 0) fail("send");
    return done;
}

int main(int count, char **words) {
    struct sockaddr_in to = {.sin_family = AF_INET}, from = {.sin_family = AF_INET};
    struct timeval patience = {10, 0};
    long done = 0;
    if (count < 3) return 2;
    signal(SIGPIPE, SIG_IGN);
    alone();
    if (!strcmp(words[1], "serve")) serve(atoi(words[2]), count - 3, words + 3, 0);
    if (!strcmp(words[1], "swallow")) serve(atoi(words[2]), count - 3, words + 3, 1);
    if (count < 5) return 2;
    inet_pton(AF_INET, words[2], &to.sin_addr);
    to.sin_port = htons(atoi(words[3]));
    double began = now();
    if (!strcmp(words[1], "clients") && count == 6) {
        inet_pton(AF_INET, words[4], &from.sin_addr);
        for (long wanted = atol(words[5]); done < wanted; done++) {
            int it = connected(&from, &to);
            ask(it);
            close(it);
            from.sin_addr.s_addr = htonl(ntohl(from.sin_addr.s_addr) + 1);
        }
    } else if (!strcmp(words[1], "send")) {
        done = sent(connected(NULL, &to), began + atof(words[4]));
    } else {
        double end = began + atof(words[4]);
        int once = !strcmp(words[1], "ask"), held = once ? connected(NULL, &to) : -1;
        if (once) setsockopt(held, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        for (; now() < end; done++) {
            int it = once ? held : connected(NULL, &to);
            ask(it);
            if (!once) close(it);
        }
    }
    printf("%ld %.6f\n", done, now() - began);
    return 0;
}
