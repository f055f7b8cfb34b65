/* A server that owns weights, and clients that come and go: each maps the same memory, read-only, and no byte is copied.
 *
 *     weights serve SOCKET [--mib N]     until it is killed
 *     weights use SOCKET                 checks them, says so, and again when standard input ends
 *
 * Whoever is killed, the others go on: clients keep what they have mapped, a server takes no notice. */
#include <argp.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common.h"

static gvmm_resource *resource;
static gvmm_buffer *weights;

static int open_socket(const char *path, bool listening)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (listening) unlink(path); /* of a server that was killed */
    int failed = listening ? bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64)
                           : connect(fd, (struct sockaddr *)&address, sizeof address);
    if (failed) perror(path), exit(1);
    return fd;
}

/* One client, on a thread of its own: one that is slow, or stopped, holds up nobody. */
static void *serve_client(void *client)
{
    gvmm_error error;
    int fd = (int)(intptr_t)client;
    if (gvmm_buffer_send(weights, fd, NULL)) {
        gvmm_last_error(&error);
        fprintf(stderr, "a client got nothing: %s\n", error.text);
    }
    close(fd);
    return NULL;
}

static void serve(const char *path, size_t bytes)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.chunk_size = 64 * MiB; /* a descriptor for each: not too small */
    must(gvmm_resource_create(&resource, 0, &options), "resource");
    must(gvmm_buffer_create(&weights, resource, bytes, NULL), "weights");
    write_words(gvmm_buffer_address(weights), gvmm_buffer_size(weights), 42);
    int listener = open_socket(path, true);
    printf("serving                 %zu MiB\n", gvmm_buffer_size(weights) / MiB);
    for (int client; (client = accept(listener, NULL, NULL)) >= 0 || errno == EINTR;) {
        pthread_t thread;
        if (client >= 0 && pthread_create(&thread, NULL, serve_client, (void *)(intptr_t)client)) close(client);
        else if (client >= 0) pthread_detach(thread);
    }
    perror("accept");
    exit(1);
}

static void use(const char *path)
{
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.self_access = GVMM_ACCESS_READ; /* its own mapping; the server's is as it was */
    must(gvmm_resource_create(&resource, 0, &options), "resource");
    int server = open_socket(path, false);
    must(gvmm_buffer_receive(&weights, resource, server, NULL, NULL), "receive");
    close(server);
    for (int times = 0; times < 2; times++) {
        expect(has_words(gvmm_buffer_address(weights), gvmm_buffer_size(weights), 42), "the weights are right");
        printf("%s                   %zu MiB\n", times ? "still" : "right", gvmm_buffer_size(weights) / MiB);
        while (!times && getchar() != EOF) {}
    }
    gvmm_buffer_release(weights);
    gvmm_resource_release(resource);
    expect_nothing_left();
}

/* ---- arguments ---- */

typedef struct arguments {
    char *words[2];
    size_t mib;
} arguments;

static error_t parse(int key, char *value, struct argp_state *state)
{
    arguments *a = state->input;
    if (key == 'm') a->mib = strtoul(value, NULL, 10);
    else if (key == ARGP_KEY_ARG && state->arg_num == 0 && strcmp(value, "serve") && strcmp(value, "use"))
        argp_error(state, "%s is neither serve nor use", value);
    else if (key == ARGP_KEY_ARG && state->arg_num < 2) a->words[state->arg_num] = value;
    else if (key == ARGP_KEY_ARG || (key == ARGP_KEY_END && state->arg_num < 2)) argp_usage(state);
    else return ARGP_ERR_UNKNOWN;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {{"mib", 'm', "N", 0, "How much to serve (256)", 0}, {0}};
    static const struct argp parser = {options, parse, "serve|use SOCKET", "Weights that processes share.", 0, 0, 0};
    arguments a = {.mib = 256};
    argp_parse(&parser, argc, argv, 0, NULL, &a);
    setlinebuf(stdout);
    open_device();
    if (strcmp(a.words[0], "serve") == 0) serve(a.words[1], a.mib * MiB);
    else use(a.words[1]);
    return 0;
}
