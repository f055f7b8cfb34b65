/* A program that uses the installed library: makes a buffer on the simulated driver (GVMM_DRIVER=sim), grows it, closes it. */
#include <gvmm.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", GVMM_VERSION_MAJOR, GVMM_VERSION_MINOR, GVMM_VERSION_PATCH);
    if (strcmp(version, gvmm_version()) != 0) {
        fprintf(stderr, "header %s, library %s\n", version, gvmm_version());
        return 1;
    }

    gvmm_resource *resource = NULL;
    gvmm_buffer *small = NULL, *large = NULL;
    gvmm_result r = gvmm_resource_create(&resource, 0, NULL);
    if (!r) r = gvmm_buffer_create(&small, resource, 1, NULL);
    if (!r) r = gvmm_buffer_grow(&large, small, 2 * gvmm_buffer_size(small), NULL);
    if (!r && gvmm_buffer_size(large) != 2 * gvmm_buffer_size(small)) r = GVMM_E_DRIVER;
    if (!r) r = gvmm_buffer_close(large, NULL);
    gvmm_buffer_release(large);
    gvmm_buffer_release(small);
    gvmm_resource_release(resource);
    if (r) {
        gvmm_error error;
        gvmm_last_error(&error);
        fprintf(stderr, "%s: %s\n", gvmm_result_name(r), error.text);
        return 1;
    }
    printf("gvmm %s works\n", version);
    return 0;
}
