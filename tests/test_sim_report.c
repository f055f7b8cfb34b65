/* What is alive on the simulated machine, and the report of it. */
#include <sys/mman.h>
#include <unistd.h>

#include "sim_kit.h"

static void nothing(void *data) { (void)data; }

/* ---------------------------------------------------------------------------------------------
 * Census
 * ------------------------------------------------------------------------------------------- */

typedef struct listed {
    gvmm_sim_item items[64];
    size_t count;
} listed;

static void list(void *user, const gvmm_sim_item *item)
{
    listed *l = user;
    ck_assert_uint_lt(l->count, 64);
    l->items[l->count++] = *item;
}

static void ck_item(const gvmm_sim_item *item, gvmm_sim_kind kind, uint64_t address, uint64_t size, unsigned references,
                    uint64_t call, const char *made_by)
{
    ck_assert_int_eq(item->kind, kind);
    ck_assert_uint_eq(item->address, address);
    ck_assert_uint_eq(item->size, size);
    ck_assert_uint_eq(item->references, references);
    ck_assert_uint_eq(item->call, call);
    ck_assert_str_eq(item->made_by, made_by);
}

START_TEST(the_census_lists_everything_in_order)
{
    static char host[4096];
    block a = block_make(2 * G);
    uint64_t first = calls_made() - 5; /* reserve */
    block b = block_make(G);
    CUmemGenericAllocationHandle again;
    CUdeviceptr plain_memory, pooled;
    void *pinned;
    CUstream s;
    CUevent e;
    CUgraph g;
    CUgraphExec x;
    CUuserObject o;
    uint64_t call = calls_made();
    ck_cu(cu->cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(a.address + G)));
    ck_cu(cu->cuMemAlloc(&plain_memory, 100));
    ck_cu(cu->cuMemAllocAsync(&pooled, 200, NULL));
    ck_cu(cu->cuMemHostAlloc(&pinned, 300, 0));
    ck_cu(cu->cuMemHostRegister(host, sizeof host, 0));
    ck_cu(cu->cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -1));
    ck_cu(cu->cuEventCreate(&e, 0));
    ck_cu(cu->cuGraphCreate(&g, 0));
    ck_cu(cu->cuGraphInstantiateWithFlags(&x, g, 0));
    ck_cu(cu->cuUserObjectCreate(&o, NULL, nothing, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));

    listed all = {.count = 0};
    size_t counts[GVMM_SIM_KIND_COUNT], sum = 0;
    gvmm_sim_census(counts, list, &all);
    for (int kind = 0; kind < GVMM_SIM_KIND_COUNT; kind++) {
        ck_assert_uint_eq(counts[kind], kind <= GVMM_SIM_MAPPING ? 2 : 1);
        sum += counts[kind];
    }
    ck_assert_uint_eq(all.count, sum);
    const gvmm_sim_item *i = all.items;
    ck_item(i++, GVMM_SIM_MEMORY, a.handle, 2 * G, 2, first + 1, "cuMemCreate");
    ck_item(i++, GVMM_SIM_MEMORY, b.handle, G, 1, first + 7, "cuMemCreate");
    ck_item(i++, GVMM_SIM_RESERVATION, a.address, 2 * G, 1, first, "cuMemAddressReserve");
    ck_item(i++, GVMM_SIM_RESERVATION, b.address, G, 1, first + 6, "cuMemAddressReserve");
    ck_item(i++, GVMM_SIM_MAPPING, a.address, 2 * G, 1, first + 2, "cuMemMap");
    ck_item(i++, GVMM_SIM_MAPPING, b.address, G, 1, first + 8, "cuMemMap");
    ck_item(i++, GVMM_SIM_PLAIN, plain_memory, 100, 1, call + 2, "cuMemAlloc");
    ck_item(i++, GVMM_SIM_POOLED, pooled, 200, 1, call + 3, "cuMemAllocAsync");
    ck_item(i++, GVMM_SIM_PINNED, (uintptr_t)pinned, 300, 1, call + 4, "cuMemHostAlloc");
    ck_item(i++, GVMM_SIM_REGISTERED, (uintptr_t)host, sizeof host, 1, call + 5, "cuMemHostRegister");
    ck_item(i++, GVMM_SIM_STREAM, (uintptr_t)s, 0, 1, call + 6, "cuStreamCreateWithPriority");
    ck_item(i++, GVMM_SIM_EVENT, (uintptr_t)e, 0, 1, call + 7, "cuEventCreate");
    ck_item(i++, GVMM_SIM_GRAPH, (uintptr_t)g, 0, 1, call + 8, "cuGraphCreate");
    ck_item(i++, GVMM_SIM_EXEC, (uintptr_t)x, 0, 1, call + 9, "cuGraphInstantiateWithFlags");
    ck_assert_int_eq(i->kind, GVMM_SIM_USER_OBJECT);
    ck_assert_uint_eq(i->call, call + 10);

    ck_cu(cu->cuMemRelease(a.handle)); /* one reference of two */
    ck_assert_uint_eq(alive(GVMM_SIM_MEMORY), 2);
    ck_cu(cu->cuMemRelease(again)); /* memory that only a mapping holds has no reference left */
    ck_assert_uint_eq(alive(GVMM_SIM_MEMORY), 1);
    ck_cu(cu->cuUserObjectRelease(o, 2));
    ck_cu(cu->cuGraphExecDestroy(x));
    ck_cu(cu->cuGraphDestroy(g));
    ck_cu(cu->cuEventDestroy(e));
    ck_cu(cu->cuStreamDestroy(s));
    ck_cu(cu->cuMemHostUnregister(host));
    ck_cu(cu->cuMemFreeHost(pinned));
    ck_cu(cu->cuMemFreeAsync(pooled, NULL));
    ck_cu(cu->cuMemFree(plain_memory));
    block_unmap(&a);
    ck_cu(cu->cuMemAddressFree(a.address, a.size));
    block_end(&b);
    gvmm_sim_census(counts, NULL, NULL);
    for (int kind = 0; kind < GVMM_SIM_KIND_COUNT; kind++) ck_assert_uint_eq(counts[kind], 0);
}
END_TEST

START_TEST(calls_are_counted_from_one)
{
    ck_ok(gvmm_sim_reset(NULL));
    listed all = {.count = 0};
    CUgraph g;
    const char *name;
    int version;
    ck_cu(cu->cuGetErrorName(CUDA_SUCCESS, &name)); /* these have no number */
    ck_cu(cu->cuDriverGetVersion(&version));
    ck_cu(cu->cuGraphCreate(&g, 0));
    gvmm_sim_census(NULL, list, &all);
    ck_assert_uint_eq(all.items[0].call, 1);
    ck_cu(cu->cuGraphDestroy(g));
    machine_start(NULL);
}
END_TEST

START_TEST(kinds_have_names)
{
    for (int a = 0; a < GVMM_SIM_KIND_COUNT; a++) {
        ck_assert_str_ne(gvmm_sim_kind_name((gvmm_sim_kind)a), "?");
        for (int b = 0; b < a; b++)
            ck_assert_str_ne(gvmm_sim_kind_name((gvmm_sim_kind)a), gvmm_sim_kind_name((gvmm_sim_kind)b));
    }
    ck_assert_str_eq(gvmm_sim_kind_name(GVMM_SIM_MEMORY), "memory");
    ck_assert_str_eq(gvmm_sim_kind_name(GVMM_SIM_KIND_COUNT), "?");
}
END_TEST

/* ---------------------------------------------------------------------------------------------
 * The report
 * ------------------------------------------------------------------------------------------- */

/* Behind one JSON value at `p`, or NULL if there is none. */
static const char *json_skip(const char *p)
{
    p += strspn(p, " \n");
    if (*p == '"') {
        for (p++; *p != '"'; p++) {
            if ((unsigned char)*p < 0x20) return NULL;
            if (*p == '\\' && !strchr("\"\\/bfnrtu", *++p)) return NULL;
        }
        return p + 1;
    }
    if (*p == '{' || *p == '[') {
        char close = *p == '{' ? '}' : ']';
        p++;
        p += strspn(p, " \n");
        if (*p == close) return p + 1;
        for (;; p++) {
            if (close == '}') {
                p += strspn(p, " \n");
                if (*p != '"' || !(p = json_skip(p))) return NULL;
                p += strspn(p, " \n");
                if (*p++ != ':') return NULL;
            }
            if (!(p = json_skip(p))) return NULL;
            p += strspn(p, " \n");
            if (*p == close) return p + 1;
            if (*p != ',') return NULL;
        }
    }
    size_t digits = strspn(p, "0123456789");
    return digits ? p + digits : NULL;
}

static bool json_is_fine(const char *text)
{
    const char *end = json_skip(text);
    return end && !end[strspn(end, " \n")];
}

static size_t report(bool json, char *text, size_t size)
{
    int fd = memfd_create("report", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    size_t items = gvmm_sim_report(fd, json);
    ssize_t n = pread(fd, text, size - 1, 0);
    ck_assert_int_ge(n, 0);
    text[n] = 0;
    close(fd);
    return items;
}

START_TEST(the_report_as_text_and_as_json)
{
    char text[8000], line[300];
    ck_assert_uint_eq(report(false, text, sizeof text), 0);
    ck_assert_ptr_nonnull(strstr(text, "0 items, 0 findings"));
    ck_assert_uint_eq(report(true, text, sizeof text), 0);
    ck_assert_msg(json_is_fine(text), "no JSON: %s", text);

    block b = block_make(G);
    CUmemGenericAllocationHandle again;
    ck_cu(cu->cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)b.address));
    uint64_t call = calls_made();
    ck_cu_fails(cu->cuStreamSynchronize((CUstream)(uintptr_t)77), CUDA_ERROR_INVALID_HANDLE);

    ck_assert_uint_eq(report(false, text, sizeof text), 3);
    snprintf(line, sizeof line, "  %-16s 0x%012llx  %zu bytes, 2 references, made by cuMemCreate (call %llu)\n",
             "memory", (unsigned long long)b.handle, G, (unsigned long long)call - 5);
    ck_assert_msg(strstr(text, line) != NULL, "no '%s' in %s", line, text);
    snprintf(line, sizeof line, "  %-16s 0x%012llx  %zu bytes, 1 reference, made by cuMemMap (call %llu)\n", "mapping",
             (unsigned long long)b.address, G, (unsigned long long)call - 4);
    ck_assert_msg(strstr(text, line) != NULL, "no '%s' in %s", line, text);
    snprintf(line, sizeof line, "  finding: cuStreamSynchronize (call %llu): stream 0x4d is not a stream",
             (unsigned long long)call + 1);
    ck_assert_msg(strstr(text, line) != NULL, "no '%s' in %s", line, text);
    ck_assert_ptr_nonnull(strstr(text, "3 items, 1 finding\n"));

    ck_assert_uint_eq(report(true, text, sizeof text), 3);
    ck_assert_msg(json_is_fine(text), "no JSON: %s", text);
    snprintf(line, sizeof line,
             "{\"kind\": \"memory\", \"address\": \"0x%llx\", \"size\": %zu, \"references\": 2, \"call\": %llu, "
             "\"made_by\": \"cuMemCreate\"}",
             (unsigned long long)b.handle, G, (unsigned long long)call - 5);
    ck_assert_msg(strstr(text, line) != NULL, "no '%s' in %s", line, text);
    ck_assert_ptr_nonnull(strstr(text, "stream 0x4d is not a stream"));
    ck_cu(cu->cuMemRelease(again));
    block_end(&b);
    gvmm_sim_findings_clear();
    ck_assert_uint_eq(gvmm_sim_report(-1, false), 0); /* nowhere to write to: no harm */
}
END_TEST

static void read_file(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, size - 1, file)] = 0;
    fclose(file);
}

START_TEST(the_report_at_exit)
{
    char text[8000], directory[] = "/tmp/gvmm_sim_XXXXXX", path[100];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    setenv("GVMM_SIM_REPORT", "-", 1);
    ck_assert_int_eq(child_run("leak", text, sizeof text), 0);
    ck_assert_ptr_nonnull(strstr(text, "made by cuMemCreate"));
    ck_assert_ptr_nonnull(strstr(text, "1 item, 0 findings"));

    snprintf(path, sizeof path, "%s/report.txt", directory);
    setenv("GVMM_SIM_REPORT", path, 1);
    ck_assert_int_eq(child_run("leak", text, sizeof text), 0);
    ck_assert_str_eq(text, "");
    read_file(path, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "made by cuMemCreate"));
    unlink(path);

    snprintf(path, sizeof path, "%s/report.json", directory);
    setenv("GVMM_SIM_REPORT", path, 1);
    ck_assert_int_eq(child_run("leak", text, sizeof text), 0);
    read_file(path, text, sizeof text);
    ck_assert_msg(json_is_fine(text), "no JSON: %s", text);
    ck_assert_ptr_nonnull(strstr(text, "\"made_by\": \"cuMemCreate\""));
    ck_assert_int_eq(child_run("clean", text, sizeof text), 0); /* written anew */
    read_file(path, text, sizeof text);
    ck_assert_ptr_null(strstr(text, "cuMemCreate"));
    unlink(path);

    snprintf(path, sizeof path, "%s/not/there", directory);
    setenv("GVMM_SIM_REPORT", path, 1);
    ck_assert_int_eq(child_run("leak", text, sizeof text), 0);
    ck_assert_ptr_nonnull(strstr(text, path));
    unsetenv("GVMM_SIM_REPORT");
    ck_assert_int_eq(child_run("leak", text, sizeof text), 0);
    ck_assert_str_eq(text, "");
    rmdir(directory);
}
END_TEST

/* Check's assertions are for its own processes: here a failed call is an exit status. */
static int child(const char *role)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = memory_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
    cu = gvmm_sim_driver();
    CUresult r = cu->cuInit(0);
    if (r || strcmp(role, "clean") == 0) return (int)r;
    return (int)cu->cuMemCreate(&handle, 2 * MiB, &prop, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) return child(argv[1]);
    unsetenv("GVMM_SIM");
    unsetenv("GVMM_SIM_REPORT");
    Suite *suite = suite_create("census and report");
    TCase *census = add_machine_case(suite, "census and report");
    tcase_add_test(census, the_census_lists_everything_in_order);
    tcase_add_test(census, calls_are_counted_from_one);
    tcase_add_test(census, kinds_have_names);
    tcase_add_test(census, the_report_as_text_and_as_json);
    tcase_add_test(census, the_report_at_exit);
    return run_suites(suite, NULL);
}
