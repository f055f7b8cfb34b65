/* Two processes, one memory: the parent exports a descriptor and sends it over a Unix socket, the child imports it, reads and
 * writes it, and still has it when the parent has given its own side back. Written against cuda.h alone. */
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_api.h"

enum { WORDS = 1000 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* ---- one descriptor, and one byte that says "go on" ---- */

typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
} control;

static void send_descriptor(int socket, int fd)
{
    char byte = 0;
    struct iovec data = {&byte, 1};
    control c = {.bytes = {0}};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = c.bytes, .msg_controllen = sizeof c.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(socket, &message, 0) != 1) fail("sendmsg");
}

static int receive_descriptor(int socket)
{
    char byte;
    struct iovec data = {&byte, 1};
    control c;
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = c.bytes, .msg_controllen = sizeof c.bytes};
    if (recvmsg(socket, &message, 0) != 1) fail("recvmsg");
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int fd;
    if (!header || header->cmsg_type != SCM_RIGHTS) {
        fprintf(stderr, "no descriptor came\n");
        exit(1);
    }
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

static void say(int socket)
{
    if (write(socket, "!", 1) != 1) fail("write");
}

static void await(int socket)
{
    char byte;
    if (read(socket, &byte, 1) != 1) {
        fprintf(stderr, "the other process is gone\n");
        exit(1);
    }
}

/* ---- memory ---- */

static size_t start(CUcontext *context)
{
    CHECK(cuInit(0));
    CUdevice device;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(context, device));
    CHECK(cuCtxSetCurrent(*context));
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    size_t size;
    CHECK(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return size;
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t size)
{
    CUdeviceptr ptr;
    CUmemAccessDesc access = read_write();
    CHECK(cuMemAddressReserve(&ptr, size, 0, 0, 0));
    CHECK(cuMemMap(ptr, size, 0, handle, 0));
    CHECK(cuMemSetAccess(ptr, size, &access, 1));
    return ptr;
}

static void unmap(CUdeviceptr ptr, CUmemGenericAllocationHandle handle, size_t size)
{
    CHECK(cuMemUnmap(ptr, size));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemAddressFree(ptr, size));
}

static void expect(CUdeviceptr ptr, unsigned first, const char *who)
{
    unsigned words[WORDS];
    CHECK(cuMemcpyDtoH(words, ptr, sizeof words));
    for (unsigned i = 0; i < WORDS; i++) {
        if (words[i] == first + i) continue;
        fprintf(stderr, "%s: word %u is %u, not %u\n", who, i, words[i], first + i);
        exit(1);
    }
}

static void fill(CUdeviceptr ptr, unsigned first)
{
    unsigned words[WORDS];
    for (unsigned i = 0; i < WORDS; i++) words[i] = first + i;
    CHECK(cuMemcpyHtoD(ptr, words, sizeof words));
    CHECK(cuCtxSynchronize()); /* a small copy from pageable memory returns before its bytes have arrived */
}

/* ---- the two sides ---- */

static int child(int socket)
{
    CUcontext context;
    size_t size = start(&context);
    int fd = receive_descriptor(socket);
    CUmemGenericAllocationHandle handle;
    CHECK(cuMemImportFromShareableHandle(&handle, (void *)(size_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    CUdeviceptr ptr = map(handle, size);
    expect(ptr, 1000, "child, what the parent wrote");
    fill(ptr, 5000);
    say(socket);
    await(socket); /* the parent has released its side */
    expect(ptr, 7000, "child, after the parent let go");
    unmap(ptr, handle, size);
    CHECK(cuDevicePrimaryCtxRelease(0));
    return 0;
}

int main(void)
{
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) fail("socketpair");
    pid_t pid = fork(); /* before cuInit: a driver does not survive a fork */
    if (pid < 0) fail("fork");
    if (pid == 0) {
        close(sockets[0]);
        return child(sockets[1]);
    }
    close(sockets[1]);

    CUcontext context;
    size_t size = start(&context);
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle;
    CHECK(cuMemCreate(&handle, size, &prop, 0));
    CUdeviceptr ptr = map(handle, size);
    fill(ptr, 1000);
    int fd;
    CHECK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_descriptor(sockets[0], fd);
    close(fd);
    await(sockets[0]);
    expect(ptr, 5000, "parent, what the child wrote");
    fill(ptr, 7000);
    unmap(ptr, handle, size);
    say(sockets[0]);

    int status;
    if (waitpid(pid, &status, 0) != pid) fail("waitpid");
    if (!WIFEXITED(status) || WEXITSTATUS(status)) {
        fprintf(stderr, "the child failed: %d\n", status);
        return 1;
    }
    CHECK(cuDevicePrimaryCtxRelease(0));
    printf("share: two processes read and wrote the same %zu bytes\n", size);
    return 0;
}
