/* Several models take turns on a device that has room for one. A model that sleeps has its weights in pinned host
 * memory and its addresses reserved; when it wakes everything is where it was, and the pinned memory is free again. */
#include <stdatomic.h>

#include "common.h"

enum { MODELS = 3, TENSORS = 4, ROTATIONS = 5 };

typedef struct model {
    gvmm_resource *resource;
    gvmm_buffer *tensors[TENSORS];
    uint64_t address[TENSORS];
} model;

static atomic_int pinned; /* pieces of pinned host memory that are alive, by what the driver was asked */

static void count_pinned(void *user, const gvmm_trace_record *record)
{
    (void)user;
    if (record->result) return;
    if (record->call == GVMM_CALL_cuMemHostRegister) pinned++;
    if (record->call == GVMM_CALL_cuMemHostUnregister) pinned--;
}

static size_t tensor_bytes(int m, int t) { return (size_t)(m + 1) * (size_t)(t + 1) * 2 * MiB; }
static unsigned seed_of(int m, int t) { return (unsigned)(m * 100 + t); }

static void load(model *model, int m)
{
    must(gvmm_resource_create(&model->resource, 0, NULL), "resource");
    for (int t = 0; t < TENSORS; t++) {
        must(gvmm_buffer_create(&model->tensors[t], model->resource, tensor_bytes(m, t), NULL), "tensor");
        model->address[t] = gvmm_buffer_address(model->tensors[t]);
        write_words(model->address[t], tensor_bytes(m, t), seed_of(m, t));
    }
}

/* While it works, host memory is pinned for its next sleep, which then takes no longer than copying. */
static void prepare_sleep(model *model)
{
    gvmm_stats stats;
    gvmm_get_stats(model->resource, &stats);
    must(gvmm_resource_prepare_evict(model->resource, stats.physical_bytes), "host memory");
}

static void sleep_model(model *model) { must(gvmm_resource_evict(model->resource, GVMM_TAG_ANY, NULL), "sleep"); }

static void wake_model(model *model) { must(gvmm_resource_restore(model->resource, GVMM_TAG_ANY), "wake"); }

static void verify(const model *model, int m)
{
    for (int t = 0; t < TENSORS; t++) {
        expect(gvmm_buffer_address(model->tensors[t]) == model->address[t], "a tensor is where it was");
        expect(has_words(model->address[t], tensor_bytes(m, t), seed_of(m, t)), "a tensor has what was written");
    }
}

int main(void)
{
    open_device();
    must(gvmm_driver_install(gvmm_trace_over(cu, count_pinned, NULL)), "counting pinned memory");
    must(gvmm_driver_get(&cu), "driver");
    model models[MODELS];
    gvmm_stats stats;
    for (int m = 0; m < MODELS; m++) {
        load(&models[m], m);
        sleep_model(&models[m]);
    }
    gvmm_get_stats(NULL, &stats);
    expect(stats.physical_bytes == 0, "no device memory while all sleep");
    for (int turn = 0; turn < ROTATIONS * MODELS; turn++) {
        int m = turn % MODELS;
        wake_model(&models[m]);
        prepare_sleep(&models[m]);
        verify(&models[m], m); /* the model works */
        sleep_model(&models[m]);
    }
    for (int m = 0; m < MODELS; m++) wake_model(&models[m]);
    gvmm_drain(); /* it goes right after they have woken */
    printf("turns                   %d, all weights verified\n", ROTATIONS * MODELS);
    printf("pinned pieces left      %d\n", pinned);
    expect(pinned == 0, "no pinned memory is left when all are awake");
    for (int m = 0; m < MODELS; m++) {
        for (int t = 0; t < TENSORS; t++) gvmm_buffer_release(models[m].tensors[t]);
        gvmm_resource_release(models[m].resource);
    }
    expect_nothing_left();
    return 0;
}
