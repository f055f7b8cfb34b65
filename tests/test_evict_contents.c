/* What comes back when memory is restored: contents, through every view, and of memory of every kind. */
#include "elastic_kit.h"

/* ---- contents ---- */

START_TEST(contents_come_back_as_promised)
{
    gvmm_contents contents = (gvmm_contents)_i;
    gvmm_resource *resource = with_chunks(3 * G, 0);
    /* chunks of 3, 3 and 2: no multiple of what goes to a file at a time */
    gvmm_buffer *buffer = create(resource, 8 * G);
    uint64_t base = address(buffer), generation = gvmm_buffer_generation(buffer);
    for (unsigned round = 1; round <= 2; round++) {
        write_pattern(base, 8 * G, round);
        evict(buffer, contents);
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 8 * G);
        ck_assert_uint_eq(address(buffer), base);
        ck_assert_uint_eq(gvmm_buffer_size(buffer), 8 * G);
        ck_not_mapped(base);
        ck_not_mapped(base + 7 * G);
        ck_cu_fails(cu->cuMemsetD8(base, 1, G), CUDA_ERROR_INVALID_VALUE);
        ck_pinned(contents == GVMM_CONTENTS_HOST);
        evict(buffer, GVMM_CONTENTS_DROP); /* there is nothing more to evict, and what is kept stays */
        ck_ok(gvmm_buffer_restore(buffer));
        ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
        ck_assert_uint_gt(gvmm_buffer_generation(buffer), generation);
        generation = gvmm_buffer_generation(buffer);
        ck_ok(gvmm_buffer_restore(buffer));
        ck_assert_uint_eq(gvmm_buffer_generation(buffer), generation);
        ck_pinned(0);
        if (contents >= GVMM_CONTENTS_HOST) ck_pattern(base, 8 * G, round);
        if (contents == GVMM_CONTENTS_ZERO) ck_filled(base, 0, 8 * G);
    }
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(statistics_tell_what_is_gone)
{
    gvmm_resource *resource = with_chunks(G, 8 * G);
    gvmm_buffer *buffer = create(resource, 4 * G);
    gvmm_stats awake = stats_of(resource);
    evict(buffer, GVMM_CONTENTS_HOST);
    gvmm_stats asleep = stats_of(resource);
    ck_assert_uint_eq(asleep.physical_bytes, 0);
    ck_assert_uint_eq(asleep.mapped_bytes, 0);
    ck_assert_uint_eq(asleep.reserved_bytes, awake.reserved_bytes);
    ck_assert_uint_eq(asleep.buffers, 1);
    ck_assert_uint_eq(asleep.mappings, 4);
    ck_assert_uint_eq(asleep.memories, 4);
    gvmm_segment before[4], after[4];
    size_t count;
    ck_ok(gvmm_buffer_segments(buffer, before, 4, &count));
    ck_ok(gvmm_buffer_restore(buffer));
    ck_ok(gvmm_buffer_segments(buffer, after, 4, &count));
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(before[i].address, after[i].address);
        ck_assert_uint_eq(before[i].memory, after[i].memory); /* the same, as far as gvmm's users are concerned */
    }
    ck_assert_uint_eq(asleep.pinned_bytes, 4 * G);
    gvmm_drain();
    gvmm_stats again = stats_of(resource);
    ck_assert_int_eq(memcmp(&awake, &again, sizeof awake), 0);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(a_resource_evicts_by_tag)
{
    gvmm_options weights = waiting_options(), cache = waiting_options();
    weights.tag = 1;
    cache.tag = 2;
    gvmm_resource *resource = resource_with(weights), *other = resource_with(weights);
    gvmm_buffer *a = create(resource, 2 * G), *b, *stranger = create(other, G), *empty = create(resource, 0);
    ck_ok(gvmm_buffer_grow(&b, a, 5 * G, &cache)); /* its new chunk has a tag of its own */
    write_pattern(address(b), 5 * G, 1);
    gvmm_evict_options options = keep(GVMM_CONTENTS_HOST);
    ck_ok(gvmm_resource_evict(resource, 2, &options));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(a), 0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(b), 3 * G);
    ck_pattern(address(b), 2 * G, 1);
    ck_ok(gvmm_resource_evict(resource, 3, &options)); /* nobody's */
    ck_ok(gvmm_resource_evict(resource, 1, &options));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(b), 5 * G);
    ck_pinned(2);
    ck_ok(gvmm_resource_restore(resource, 2));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(b), 2 * G);
    ck_pinned(1);
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL));
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(b), 5 * G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(stranger), 0); /* another resource's */
    ck_ok(gvmm_resource_restore(resource, GVMM_TAG_ANY));
    ck_ok(gvmm_resource_restore(resource, GVMM_TAG_ANY));
    ck_pattern(address(b), 5 * G, 1);
    ck_pinned(0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(empty) + gvmm_buffer_generation(empty), 0);
    ck_ok(gvmm_buffer_evict(empty, NULL));
    ck_ok(gvmm_buffer_restore(empty));
    gvmm_buffer_release(a);
    gvmm_buffer_release(b);
    gvmm_buffer_release(stranger);
    gvmm_buffer_release(empty);
    ck_ok(gvmm_resource_evict(resource, GVMM_TAG_ANY, NULL)); /* nothing there */
    gvmm_resource_release(resource);
    gvmm_resource_release(other);
    ck_no_warnings();
}
END_TEST

/* More memories than fit the first list. */
START_TEST(a_resource_of_many_chunks)
{
    gvmm_resource *resource = with_chunks(G, 0);
    gvmm_buffer *buffer = create(resource, 200 * G);
    for (size_t i = 0; i < 200; i++) ck_cu(cu->cuMemsetD8(address(buffer) + i * G, (unsigned char)(i + 1), 16));
    ck_cu(cu->cuCtxSynchronize());
    ck_ok(gvmm_resource_evict(resource, 0, NULL));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 200 * G);
    ck_pinned(2);
    ck_ok(gvmm_resource_restore(resource, 0));
    ck_assert_uint_eq(gvmm_buffer_generation(buffer), 200);
    for (size_t i = 0; i < 200; i++) ck_filled(address(buffer) + i * G, (unsigned char)(i + 1), 16);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
}
END_TEST

START_TEST(wrong_options_evict_nothing)
{
    gvmm_buffer *buffer = create(plain, G);
    gvmm_evict_options options = keep(GVMM_CONTENTS_HOST);
    options.struct_size--;
    ck_fails(gvmm_buffer_evict(buffer, &options), GVMM_E_INVALID);
    ck_names("struct_size");
    options = keep((gvmm_contents)4);
    ck_fails(gvmm_buffer_evict(buffer, &options), GVMM_E_INVALID);
    ck_names("contents");
    options = keep(GVMM_CONTENTS_FILE);
    options.directory = NULL;
    ck_fails(gvmm_resource_evict(plain, 0, &options), GVMM_E_INVALID);
    ck_names("directory");
    options.directory = "/nowhere/at/all";
    ck_fails(gvmm_buffer_evict(buffer, &options), GVMM_E_INVALID);
    ck_names("/nowhere/at/all");
    ck_fails(gvmm_buffer_evict(NULL, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_buffer_restore(NULL), GVMM_E_INVALID);
    ck_fails(gvmm_resource_evict(NULL, 0, NULL), GVMM_E_INVALID);
    ck_fails(gvmm_resource_restore(NULL, 0), GVMM_E_INVALID);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), 0);
    ck_mapped(address(buffer));
    ck_ok(gvmm_buffer_close(buffer, NULL));
    ck_fails(gvmm_buffer_evict(buffer, NULL), GVMM_E_CLOSED);
    ck_fails(gvmm_buffer_restore(buffer), GVMM_E_CLOSED);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer) + gvmm_buffer_generation(buffer), 0);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(NULL) + gvmm_buffer_generation(NULL), 0);
    gvmm_buffer_release(buffer);
}
END_TEST

/* ---- views ---- */

START_TEST(every_view_finds_its_bytes_again)
{
    gvmm_contents contents = (gvmm_contents)_i;
    gvmm_resource *resource = with_chunks(G, 4 * G);
    CUgraph graph;
    ck_cu(cu->cuGraphCreate(&graph, 0));
    gvmm_buffer *a = create(resource, 3 * G), *alias = grow(a, 2 * G), *longer = grow(a, 4 * G),
                *moved = grow(a, 5 * G);
    gvmm_buffer *shorter, *twice, *read_only, *gone = grow(a, 6 * G);
    ck_ok(gvmm_buffer_shrink(&shorter, moved, G));
    ck_ok(gvmm_buffer_ring(&twice, a, 2));
    ck_ok(gvmm_buffer_compose(&read_only, plain, (gvmm_piece[]){{a, G, 0, true}}, 1, NULL));
    ck_ok(gvmm_buffer_retain_in_graph(gone, graph));
    uint64_t held = address(gone);
    gvmm_buffer_release(gone);
    write_pattern(address(a), 3 * G, 5);

    evict(twice, contents); /* one is as good as another */
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(alias), 3 * G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(longer), 3 * G); /* its own chunk is not shared */
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(shorter), G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(read_only), 2 * G);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(twice), 6 * G);
    gvmm_buffer *all[] = {a, alias, longer, moved, shorter, twice, read_only};
    for (int i = 0; i < 7; i++) ck_not_mapped(address(all[i]));
    ck_not_mapped(held);
    ck_ok(gvmm_buffer_restore(read_only)); /* two of the three */
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(a), G);
    ck_ok(gvmm_buffer_restore(shorter));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(a), 0);
    ck_pinned(0);
    gvmm_buffer *whole[] = {a, alias, longer, moved, twice};
    for (int i = 0; i < 5; i++) ck_pattern(address(whole[i]), 3 * G, 5);
    ck_pattern(address(shorter), G, 5);
    ck_pattern(held, 3 * G, 5);
    unsigned char *first = malloc(2 * G), *second = malloc(2 * G);
    ck_cu(cu->cuMemcpyDtoH(first, address(a) + G, 2 * G));
    ck_cu(cu->cuMemcpyDtoH(second, address(read_only), 2 * G));
    ck_assert_int_eq(memcmp(first, second, 2 * G), 0);
    free(first);
    free(second);
    ck_assert_uint_eq(access_of(address(read_only), 0), 1);
    ck_assert_uint_eq(access_of(address(twice), 0), 3);
    fill(address(moved), 3, G); /* still one memory */
    ck_filled(address(twice) + 3 * G, 3, G);

    for (int i = 0; i < 7; i++) gvmm_buffer_release(all[i]);
    ck_cu(cu->cuGraphDestroy(graph));
    while (stats_of(resource).mappings) gvmm_drain(); /* the driver tells some time later */
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(buffers_live_on_while_evicted)
{
    gvmm_resource *resource = with_chunks(G, 4 * G);
    gvmm_buffer *a = create(resource, 2 * G), *in_place, *moved, *shorter, *twice;
    write_pattern(address(a), 2 * G, 1);
    evict(a, GVMM_CONTENTS_HOST);
    in_place = grow(a, 4 * G);
    ck_assert_uint_eq(address(in_place), address(a));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(in_place), 2 * G); /* what is new is there */
    fill(address(in_place) + 2 * G, 7, 2 * G);
    moved = grow(a, 3 * G);
    ck_assert_uint_ne(address(moved), address(a));
    ck_ok(gvmm_buffer_shrink(&shorter, moved, G));
    ck_ok(gvmm_buffer_ring(&twice, shorter, 3));
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(twice), 3 * G);
    ck_not_mapped(address(twice));
    evict(in_place, GVMM_CONTENTS_FILE); /* the rest of it, kept elsewhere */
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(in_place), 4 * G);
    ck_pinned(1);
    ck_ok(gvmm_buffer_close(a, NULL));
    ck_ok(gvmm_buffer_restore(in_place));
    ck_pinned(0);
    ck_pattern(address(in_place), 2 * G, 1);
    ck_filled(address(in_place) + 2 * G, 7, 2 * G);
    ck_pattern(address(moved), 2 * G, 1);
    ck_pattern(address(shorter), G, 1);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(twice), 0);
    fill(address(twice) + 2 * G, 9, G);
    ck_filled(address(in_place), 9, G);
    gvmm_buffer_release(a);
    gvmm_buffer_release(in_place);
    gvmm_buffer_release(moved);
    gvmm_buffer_release(shorter);
    gvmm_buffer_release(twice);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

START_TEST(evicted_memory_that_nobody_shows_goes_with_its_backup)
{
    gvmm_buffer *a = create(plain, 2 * G), *alias = grow(a, G);
    evict(a, GVMM_CONTENTS_HOST);
    gvmm_buffer_release(a);
    ck_pinned(1);
    ck_ok(gvmm_buffer_close(alias, NULL));
    ck_pinned(0);
    gvmm_buffer_release(alias);
    ck_nothing_left();

    /* one backup of two chunks: kept as long as one of them may need it */
    gvmm_resource *resource = with_chunks(G, 0);
    a = create(resource, 2 * G);
    write_pattern(address(a), G, 1);
    ck_ok(gvmm_buffer_shrink(&alias, a, G));
    evict(a, GVMM_CONTENTS_HOST);
    gvmm_buffer_release(a);
    ck_pinned(1);
    gvmm_resource_release(resource); /* the buffer holds it */
    ck_ok(gvmm_buffer_restore(alias));
    ck_pattern(address(alias), G, 1);
    ck_pinned(0);
    gvmm_buffer_release(alias);
    ck_no_warnings();
}
END_TEST

/* ---- who may touch the memory ---- */

START_TEST(host_memory_can_be_dropped)
{
    gvmm_resource *host = resource_with(on_host());
    gvmm_buffer *buffer = create(host, G), *device_buffer = create(plain, G), *both;
    volatile char *bytes = (volatile char *)(uintptr_t)address(buffer);
    bytes[3] = 1;
    gvmm_evict_options kept = keep(GVMM_CONTENTS_HOST);
    ck_fails(gvmm_buffer_evict(buffer, &kept), GVMM_E_UNSUPPORTED);
    kept = keep(GVMM_CONTENTS_FILE);
    ck_fails(gvmm_resource_evict(host, GVMM_TAG_ANY, &kept), GVMM_E_UNSUPPORTED);
    ck_assert_int_eq(bytes[3], 1);
    evict(buffer, GVMM_CONTENTS_ZERO);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(buffer), G);
    ck_ok(gvmm_buffer_evict(buffer, &kept)); /* done already */
    ck_ok(gvmm_resource_restore(host, GVMM_TAG_ANY));
    ck_assert_int_eq(bytes[3], 0);
    bytes[3] = 2;
    evict(buffer, GVMM_CONTENTS_DROP);
    ck_ok(gvmm_buffer_restore(buffer));
    bytes[3] = 3;

    /* beside device memory in one buffer */
    ck_ok(gvmm_buffer_compose(&both, plain, (gvmm_piece[]){{.buffer = buffer}, {.buffer = device_buffer}}, 2, NULL));
    ck_fails(gvmm_buffer_evict(both, NULL), GVMM_E_UNSUPPORTED);
    ck_assert_uint_eq(gvmm_buffer_evicted_bytes(both), 0);
    evict(both, GVMM_CONTENTS_DROP);
    ck_ok(gvmm_buffer_restore(both));
    gvmm_buffer_release(both);
    /* device memory in a buffer of a host resource can be kept */
    ck_ok(gvmm_buffer_compose(&both, host, (gvmm_piece[]){{.buffer = device_buffer}}, 1, NULL));
    write_pattern(address(device_buffer), G, 1);
    evict(both, GVMM_CONTENTS_HOST);
    ck_ok(gvmm_buffer_restore(both));
    ck_pattern(address(device_buffer), G, 1);
    gvmm_buffer_release(both);
    gvmm_buffer_release(buffer);
    gvmm_buffer_release(device_buffer);
    gvmm_resource_release(host);
    ck_no_warnings();
}
END_TEST

/* It is copied through a mapping for the purpose. */
START_TEST(memory_that_its_device_may_not_write_can_be_kept)
{
    gvmm_access wanted = _i == 0 ? GVMM_ACCESS_NONE : GVMM_ACCESS_READ;
    gvmm_options options = waiting_options();
    options.self_access = wanted;
    static const int itself[] = {0};
    if (_i == 2) { /* the later of two entries for a device counts */
        options.self_access = GVMM_ACCESS_READ_WRITE;
        options.peers = itself;
        options.peer_count = 1;
        options.peer_access = GVMM_ACCESS_READ;
    }
    gvmm_resource *resource = resource_with(options);
    gvmm_buffer *buffer = create(resource, 2 * G);
    ck_assert_uint_eq(access_of(address(buffer), 0), wanted);
    ck_ok(gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_READ_WRITE));
    write_pattern(address(buffer), 2 * G, 1);
    ck_ok(gvmm_buffer_set_access(buffer, 0, wanted));
    for (int i = 0; i < 2; i++) {
        evict(buffer, i ? GVMM_CONTENTS_FILE : GVMM_CONTENTS_HOST);
        ck_assert_uint_eq(stats_of(resource).reserved_bytes, 2 * G);
        ck_ok(gvmm_buffer_restore(buffer));
        ck_assert_uint_eq(access_of(address(buffer), 0), wanted);
        ck_assert_uint_eq(stats_of(resource).reserved_bytes, 2 * G);
    }
    ck_ok(gvmm_buffer_set_access(buffer, 0, GVMM_ACCESS_READ_WRITE));
    ck_pattern(address(buffer), 2 * G, 1);
    gvmm_buffer_release(buffer);

    /* as it was made: never opened by set_access, so with the list of the options */
    buffer = create(resource, G);
    evict(buffer, GVMM_CONTENTS_HOST);
    ck_ok(gvmm_buffer_restore(buffer));
    ck_assert_uint_eq(access_of(address(buffer), 0), wanted);
    gvmm_buffer_release(buffer);
    gvmm_resource_release(resource);
    ck_no_warnings();
}
END_TEST

/* Each device copies its own: none need reach another's. */
START_TEST(memory_of_several_devices)
{
    if (lacks_second_device("memory_of_several_devices")) return;
    gvmm_resource *second;
    ck_ok(gvmm_resource_create(&second, 1, NULL));
    gvmm_buffer *a = create(plain, G), *b = create(second, 2 * G), *both;
    CUcontext context;
    ck_ok(gvmm_buffer_compose(&both, plain, (gvmm_piece[]){{.buffer = b}, {.buffer = a}}, 2, NULL));
    ck_ok(gvmm_buffer_set_access(both, 0, GVMM_ACCESS_READ_WRITE));
    write_pattern(address(both), 3 * G, 1);
    ck_ok(gvmm_buffer_set_access(b, 0, GVMM_ACCESS_NONE));
    gvmm_buffer_release(b);
    gvmm_resource_release(second); /* nobody but the copies holds device 1's context */
    for (int i = 0; i < 2; i++) {
        evict(both, i ? GVMM_CONTENTS_FILE : GVMM_CONTENTS_HOST);
        ck_pinned(i == 0);
        ck_ok(gvmm_buffer_restore(both));
    }
    ck_ok(gvmm_buffer_set_access(both, 0, GVMM_ACCESS_READ_WRITE));
    ck_pattern(address(both), 3 * G, 1);
    ck_cu(cu->cuCtxGetCurrent(&context));
    ck_assert_ptr_nonnull(context);
    gvmm_buffer_release(a);
    gvmm_buffer_release(both);

    static const int devices[] = {0, 1};
    gvmm_options options = waiting_options();
    options.chunk_size = G;
    options.stripe = devices;
    options.stripe_count = 2;
    gvmm_resource *striped = resource_with(options);
    a = create(striped, 5 * G);
    write_pattern(address(a), 5 * G, 2);
    ck_ok(gvmm_resource_evict(striped, GVMM_TAG_ANY, NULL));
    ck_pinned(1);
    ck_ok(gvmm_resource_restore(striped, GVMM_TAG_ANY));
    ck_pattern(address(a), 5 * G, 2);
    gvmm_buffer_release(a);
    gvmm_resource_release(striped);
    ck_pinned(0);
    ck_no_warnings();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("evicted contents");
    TCase *contents = add_watched_case(suite, "contents");
    tcase_add_loop_test(contents, contents_come_back_as_promised, GVMM_CONTENTS_DROP, GVMM_CONTENTS_FILE + 1);
    tcase_add_test(contents, statistics_tell_what_is_gone);
    tcase_add_test(contents, a_resource_evicts_by_tag);
    tcase_add_test(contents, a_resource_of_many_chunks);
    tcase_add_test(contents, wrong_options_evict_nothing);
    TCase *views = add_watched_case(suite, "views");
    tcase_add_loop_test(views, every_view_finds_its_bytes_again, GVMM_CONTENTS_HOST, GVMM_CONTENTS_FILE + 1);
    tcase_add_test(views, buffers_live_on_while_evicted);
    tcase_add_test(views, evicted_memory_that_nobody_shows_goes_with_its_backup);
    TCase *access = add_watched_case(suite, "who may touch the memory");
    tcase_add_test(access, host_memory_can_be_dropped);
    tcase_add_loop_test(access, memory_that_its_device_may_not_write_can_be_kept, 0, 3);
    tcase_add_test(access, memory_of_several_devices);
    return run_suites(suite, NULL);
}
