/* What cuGetProcAddress answers, printed. The expected output beside it came from an H200 (driver 580, CUDA 13.0); the
 * stand-in must print the same. Only dlopen: nothing of CUDA is needed to build it. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*get_fn)(const char *, void **, int, unsigned long long);
typedef int (*get_v2_fn)(const char *, void **, int, unsigned long long, int *);

static void *library;
static get_fn get;
static get_v2_fn get_v2;

/* Which spelling of `name` an address is. */
static const char *symbol_of(const char *name, void *fn)
{
    if (!fn) return "NULL";
    if (fn == (void *)1) return "untouched";
    static const char *const tails[] = {"", "_v2", "_v3", "_v4", "_ptds", "_v2_ptds", "_ptsz", "_v2_ptsz", "_v3_ptsz"};
    static char text[64];
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(text, sizeof text, "%s%s", name, tails[i]);
        if (dlsym(library, text) == fn) return text;
    }
    return "another function";
}

static void ask(const char *name, int version, unsigned long long flags)
{
    void *fn = (void *)1;
    int found = -1;
    int status = get_v2(name, &fn, version, flags, &found);
    printf("%-26s %5d flags %llu: %d, found %d, %s\n", name, version, flags, status, found, symbol_of(name, fn));
}

static void ask_v1(const char *name, int version)
{
    void *fn = (void *)1;
    int status = get(name, &fn, version, 0);
    printf("first spelling: %-26s %5d: %d, %s\n", name, version, status, symbol_of(name, fn));
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&get = dlsym(library, "cuGetProcAddress");
    *(void **)&get_v2 = dlsym(library, "cuGetProcAddress_v2");
    if (!get || !get_v2) return 1;

    /* before cuInit */
    ask("cuInit", 2000, 0);
    ask("cuMemCreate", 13000, 0);

    int (*init)(unsigned);
    *(void **)&init = dlsym(library, "cuInit");
    if (init(0)) return 1;

    static const struct {
        const char *name;
        int versions[6];
    } names[] = {
        {"cuInit", {2000, 1000, 0, 13000}},
        {"cuMemAlloc", {2000, 3010, 3020, 13000}},
        {"cuMemcpyHtoD", {2000, 3020, 6050, 7000, 13000}},
        {"cuMemcpyHtoDAsync", {2000, 3020, 7000}},
        {"cuMemcpyAsync", {2000, 4000, 7000}},
        {"cuMemsetD8", {2000, 3020, 7000}},
        {"cuCtxCreate", {2000, 3020, 11040, 12050, 13000}},
        {"cuCtxDestroy", {2000, 4000}},
        {"cuDeviceGetUuid", {9020, 11030, 11040}},
        {"cuDevicePrimaryCtxRelease", {7000, 11000}},
        {"cuStreamBeginCapture", {9000, 10000, 10010, 13000}},
        {"cuStreamGetCaptureInfo", {10010, 11030, 12030}},
        {"cuStreamSynchronize", {2000, 7000}},
        {"cuEventElapsedTime", {2000, 12080}},
        {"cuEventRecord", {2000, 7000}},
        {"cuGraphInstantiate", {10000, 11000, 11040, 12000, 13000}},
        {"cuGraphInstantiateWithFlags", {11030, 11040, 12000}},
        {"cuGraphAddDependencies", {10000, 12030}},
        {"cuGraphLaunch", {10000}},
        {"cuGetProcAddress", {11030, 12000, 13000}},
        {"cuStreamCreate", {2000}},
        {"cuMemAllocAsync", {11010, 11020}},
        {"cuMemHostRegister", {4000, 6050}},
        {"cuMemCreate", {9000, 10020}},
        {"cuProfilerStart", {2000, 4000}},
        {"cuArrayCreate", {2000, 3020}},
        {"cuTexRefCreate", {2000}},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int k = 0; k < 6 && (k == 0 || names[i].versions[k]); k++)
            for (unsigned flags = 0; flags <= 2; flags++) ask(names[i].name, names[i].versions[k], flags);

    /* names that are none */
    ask("cuNoSuchCall", 13000, 0);
    ask("cuMemAlloc_v2", 13000, 0);
    ask("cuMemcpyAsync_ptsz", 13000, 0);
    ask("", 13000, 0);
    ask("cumemcreate", 13000, 0);

    /* versions and flags that are none */
    ask("cuMemCreate", 13010, 0);
    ask("cuMemCreate", 20000, 0);
    ask("cuNoSuchCall", 20000, 0);
    ask("cuMemCreate", 0, 0);
    ask("cuMemCreate", 13000, 3);
    ask("cuMemcpyAsync", 13000, 3);
    ask("cuMemCreate", 13000, 4);
    ask("cuMemCreate", 13000, 1ull << 40);

    /* without a place for an answer */
    void *fn = (void *)1;
    printf("no place for the status: %d", get_v2("cuMemCreate", &fn, 13000, 0, NULL));
    printf(", %s\n", symbol_of("cuMemCreate", fn));
    fn = (void *)1;
    printf("no place for the status of an unknown name: %d", get_v2("cuNoSuchCall", &fn, 13000, 0, NULL));
    printf(", %s\n", symbol_of("cuMemCreate", fn));
    fn = (void *)1;
    printf("no place for the status of an early version: %d", get_v2("cuMemCreate", &fn, 9000, 0, NULL));
    printf(", %s\n", symbol_of("cuMemCreate", fn));
    ask_v1("cuMemCreate", 13000);
    ask_v1("cuMemCreate", 9000);
    ask_v1("cuNoSuchCall", 13000);
    ask_v1("cuMemCreate", 20000);

    /* tables that the runtime asks for */
    int (*table)(const void **, const void *);
    *(void **)&table = dlsym(library, "cuGetExportTable");
    const void *out = NULL;
    char id[16] = {1};
    printf("an unknown export table: %d\n", table(&out, id));
    return 0;
}
