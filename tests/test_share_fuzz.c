/* The strings of the corpus, and some thousands more, as other processes' descriptors and messages. With arguments it runs
 * files:
 *
 *     test_share_fuzz FILE ... */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "share_fuzz.h"

#ifndef SHARE_CORPUS
#define SHARE_CORPUS "corpus_share"
#endif

enum { STRINGS = 20000, LONGEST = 1 << 16 };

/* splitmix64: the same numbers everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Short ones mostly: of many edits some will be refused before the others matter. */
static void run_random(uint64_t seed)
{
    uint8_t bytes[128];
    uint64_t state = seed;
    size_t size = 2 + next_random(&state) % (seed % 8 ? 20 : sizeof bytes - 2);
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)next_random(&state);
    share_run(bytes, size);
}

static bool run_file(const char *path)
{
    static uint8_t bytes[LONGEST];
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    share_run(bytes, size);
    return true;
}

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!run_file(argv[i])) return EXIT_FAILURE;
    if (argc > 1) return EXIT_SUCCESS;
    struct dirent **names; /* all first: no descriptor may be open meanwhile that is not there at the end */
    int files = scandir(SHARE_CORPUS, &names, is_visible, alphasort);
    if (files <= 0) return EXIT_FAILURE;
    for (int i = 0; i < files; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", SHARE_CORPUS, names[i]->d_name);
        if (!run_file(path)) return EXIT_FAILURE;
        free(names[i]);
    }
    free(names);
    for (uint64_t seed = 1; seed <= STRINGS; seed++) run_random(seed);
    printf("%d strings of the corpus, %d others: nothing is left of any\n", files, STRINGS);
    return EXIT_SUCCESS;
}
