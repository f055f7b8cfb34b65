/* A fork in the middle of work: children have no driver and harm none; the report is the parent's alone. */
#include <sys/wait.h>
#include <unistd.h>

#include "sim_kit.h"

static void nothing(void *data) { (void)data; }

static atomic_bool enough;

static void *churn(void *unused)
{
    (void)unused;
    CUcontext context;
    CUstream s;
    if (cu->cuDevicePrimaryCtxRetain(&context, 0) || cu->cuCtxSetCurrent(context) || cu->cuStreamCreate(&s, 0))
        return (void *)1;
    while (!atomic_load(&enough)) {
        if (SANITIZED) usleep(20000); /* the thread sanitizer keeps something for every address */
        CUdeviceptr address;
        if (cu->cuMemAlloc(&address, 100000) || cu->cuMemsetD8Async(address, 1, 100000, s) ||
            cu->cuLaunchHostFunc(s, nothing, NULL) || cu->cuStreamSynchronize(s) || cu->cuMemFree(address))
            return (void *)1;
    }
    cu->cuStreamDestroy(s);
    cu->cuCtxSetCurrent(NULL);
    cu->cuDevicePrimaryCtxRelease(0);
    return NULL;
}

/* Every call, its arguments unlooked at, but those that always answer. */
static int calls_that_do_not_say_not_initialised(void)
{
    int wrong = 0;
    int count;
    CUdeviceptr address = 0;
    wrong += cu->cuInit(0) != CUDA_ERROR_NOT_INITIALIZED;
    wrong += cu->cuDeviceGetCount(&count) != CUDA_ERROR_NOT_INITIALIZED;
    wrong += cu->cuMemAddressReserve(&address, 2 * MiB, 0, 0, 0) != CUDA_ERROR_NOT_INITIALIZED;
    wrong += cu->cuMemUnmap(0, 0) != CUDA_ERROR_NOT_INITIALIZED;
    wrong += cu->cuStreamSynchronize(NULL) != CUDA_ERROR_NOT_INITIALIZED;
    wrong += cu->cuCtxSetCurrent(NULL) != CUDA_ERROR_NOT_INITIALIZED;
    wrong += cu->cuCtxPopCurrent(NULL) != CUDA_ERROR_NOT_INITIALIZED;
    wrong += cu->cuMemFree(0) != CUDA_ERROR_NOT_INITIALIZED;
    wrong += cu->cuEventQuery(NULL) != CUDA_ERROR_NOT_INITIALIZED;
    wrong += cu->cuGraphCreate(NULL, 0) != CUDA_ERROR_NOT_INITIALIZED;
    const char *name;
    wrong += cu->cuGetErrorName(CUDA_ERROR_NOT_INITIALIZED, &name) != CUDA_SUCCESS;
    return wrong;
}

static int fork_while_others_work(void)
{
    enum { THREADS = 3, CHILDREN = SANITIZED ? 10 : 40 };
    pthread_t threads[THREADS];
    int wrong = 0;
    cu = gvmm_sim_driver();
    if (cu->cuInit(0)) return 100;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, churn, NULL)) return 101;
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(30); /* instead of waiting for ever */
            exit(calls_that_do_not_say_not_initialised());
        }
        int status;
        waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) wrong++;
    }
    atomic_store(&enough, true);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        if (failed) wrong += 50; /* the parent was harmed */
    }
    return wrong;
}

START_TEST(forked_children_have_no_driver_and_harm_none)
{
    char text[8000];
    setenv("GVMM_SIM", "granularity=64K",
           1); /* the thread sanitizer's memory grows with every address that was ever used */
    setenv("GVMM_SIM_REPORT", "-", 1);
    if (SANITIZED) setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* what only the lost threads knew is no leak */
    ck_assert_int_eq(child_run("fork", text, sizeof text), 0);
    ck_assert_str_eq(text, "gvmm simulated driver: alive\n  0 items, 0 findings\n");
    unsetenv("GVMM_SIM");
    unsetenv("GVMM_SIM_REPORT");
    unsetenv("ASAN_OPTIONS");
}
END_TEST

static int look_around(void)
{
    size_t counts[GVMM_SIM_KIND_COUNT];
    gvmm_sim_census(counts, NULL, NULL);
    gvmm_sim_findings(NULL, NULL);
    gvmm_sim_quiet(true);
    return 0;
}

/* Asking for the census there must not hang on a lock that another thread of the parent had. */
static int census_in_a_forked_child(void)
{
    pthread_t threads[3];
    int wrong = 0;
    cu = gvmm_sim_driver();
    if (cu->cuInit(0)) return 100;
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, churn, NULL)) return 101;
    for (int i = 0; i < 200 && !wrong; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            _exit(look_around());
        }
        int status;
        waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) wrong++;
    }
    atomic_store(&enough, true);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return wrong;
}

START_TEST(the_census_in_a_forked_child_does_not_hang)
{
    char text[8000];
    ck_assert_int_eq(child_run("census", text, sizeof text), 0);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1) return strcmp(argv[1], "fork") == 0 ? fork_while_others_work() : census_in_a_forked_child();
    unsetenv("GVMM_SIM");
    unsetenv("GVMM_SIM_REPORT");
    Suite *suite = suite_create("fork");
    TCase *forks = add_machine_case(suite, "fork");
    tcase_add_test(forks, forked_children_have_no_driver_and_harm_none);
    tcase_add_test(forks, the_census_in_a_forked_child_does_not_hang);
    return run_suites(suite, NULL);
}
