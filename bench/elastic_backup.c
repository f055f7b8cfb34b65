/* The backup of an evict alone. A file of its own, as internal.h and bench.h have a name in common. */
#include "internal.h"

/* elastic.h declares them. */
void *backup_make(size_t size);
void backup_drop(void *made);
void backup_lend(void *made);

void *backup_make(size_t size)
{
    backup *b;
    if (gvmm__backup_create(&b, size, NULL, 0)) return NULL;
    if (gvmm__backup_pin(b, size) == GVMM_OK) return b;
    gvmm__backup_release(b);
    return NULL;
}

void backup_drop(void *made) { gvmm__backup_release(made); }
void backup_lend(void *made) { gvmm__backup_lend(made); }
