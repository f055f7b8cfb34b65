/* The backup of an evict alone. A file of its own, as internal.h and bench.h have a name in common. */
#include "internal.h"

/* elastic.h declares them. */
void *backup_make(size_t size);
void backup_drop(void *made);

void *backup_make(size_t size)
{
    backup *b;
    account *a = gvmm__account_create();
    if (!a) return NULL;
    gvmm_result r = gvmm__backup_create(&b, size, NULL, 0, a);
    gvmm__account_release(a); /* the backup holds it */
    if (r) return NULL;
    if (gvmm__backup_pin(b, size) == GVMM_OK) return b;
    gvmm__backup_release(b);
    return NULL;
}

void backup_drop(void *made) { gvmm__backup_release(made); }
