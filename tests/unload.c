/* A program that loads gvmm at run time and unloads it: what gvmm has of threads, one of its own and the end of others, goes
 * on in it.
 *
 *     unload path/to/libgvmm.so */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "gvmm.h"

static void *library;
static sem_t has_kept, is_closed;

static void *find(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) exit(EXIT_FAILURE);
    return found;
}

#define CALL(function) (*(__typeof__(&function))find(#function))

static void keep_something(void)
{
    gvmm_resource *resource;
    gvmm_buffer *buffer;
    gvmm_options options = GVMM_OPTIONS_INIT;
    options.reuse_limit = 64 << 20;
    if (CALL(gvmm_resource_create)(&resource, 0, &options)) exit(EXIT_FAILURE);
    if (CALL(gvmm_buffer_create)(&buffer, resource, 1, NULL)) exit(EXIT_FAILURE);
    CALL(gvmm_buffer_release)(buffer);
    CALL(gvmm_resource_release)(resource);
    CALL(gvmm_drain)();
}

static void *keep_and_end(void *unused)
{
    keep_something();
    sem_post(&has_kept);
    while (sem_wait(&is_closed)) continue;
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc != 2 || !(library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL))) {
        fprintf(stderr, "cannot load %s\n", argc == 2 ? argv[1] : "nothing");
        return EXIT_FAILURE;
    }
    sem_init(&has_kept, 0, 0);
    sem_init(&is_closed, 0, 0);
    if (pthread_create(&thread, NULL, keep_and_end, NULL)) return EXIT_FAILURE;
    while (sem_wait(&has_kept)) continue;
    if (dlclose(library)) return EXIT_FAILURE;
    sem_post(&is_closed);
    pthread_join(thread, NULL);
    if (!(library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL))) return EXIT_FAILURE;
    keep_something();
    puts("100%: it ends and begins again");
    return EXIT_SUCCESS;
}
