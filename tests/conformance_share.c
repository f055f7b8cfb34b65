/* S: memory shared by descriptors, in one process and between two. */
#include "conformance.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static const CUmemAllocationHandleType FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

static CUdeviceptr show(handle h, size_t size) /* maps it, read-write */
{
    CUdeviceptr p = reserve(size);
    map(p, size, h);
    give_access(p, size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return p;
}

/* ---- export ---- */

static void export_with(handle h, int type, unsigned long long flags)
{
    int fd = -1;
    TELL("", cuMemExportToShareableHandle(&fd, h, (CUmemAllocationHandleType)type, flags));
    if (fd >= 0) close(fd);
}

FACT(S_export, "Exporting exportable memory.") { export_with(create_exportable(G), 1, 0); }
FACT(S_export_closed_memory, "Exporting memory that was not created exportable.") { export_with(create(G), 1, 0); }
FACT(S_export_flags, "Exporting with flags 1.") { export_with(create_exportable(G), 1, 1); }
FACT(S_export_type_0, "Exporting as handle type 0.") { export_with(create_exportable(G), 0, 0); }
FACT(S_export_win32, "Exporting as win32.") { export_with(create_exportable(G), 2, 0); }
FACT(S_export_handle_0, "Exporting handle 0.") { export_with(0, 1, 0); }
FACT(S_export_closed_win32, "Exporting memory that was not created exportable, as win32: which error comes.")
{
    export_with(create(G), 2, 0);
}
FACT(S_export_released, "Exporting by a released handle that a mapping keeps alive.")
{
    handle h = create_exportable(G);
    map(reserve(G), G, h);
    DO(cuMemRelease(GONE(h)));
    export_with(h, 1, 0);
}
FACT(S_export_retained, "Exporting by a handle retained from a mapping.")
{
    handle h = create_exportable(G), kept = 0;
    CUdeviceptr p = show(h, G);
    DO(cuMemRetainAllocationHandle(&kept, (void *)(uintptr_t)p));
    export_with(kept, 1, 0);
    DO(cuMemRelease(kept));
}
FACT(S_export_twice, "Exporting twice gives two descriptors.")
{
    handle h = create_exportable(G);
    int a = export_fd(h), b = export_fd(h);
    say("differ=%d", a != b);
}
FACT(S_export_cloexec, "Is an exported descriptor closed on exec.")
{
    say("cloexec=%d", (fcntl(export_fd(create_exportable(G)), F_GETFD) & FD_CLOEXEC) != 0);
}

/* ---- import ---- */

FACT(S_import_0, "Importing descriptor 0, which is no memory.")
{
    handle h = 0;
    tell("", try_import(&h, 0));
}
FACT(S_import_closed, "Importing a descriptor that is not open.")
{
    handle h = 0;
    tell("", try_import(&h, 9999));
}
FACT(S_import_null_device, "Importing a descriptor of /dev/null.")
{
    handle h = 0;
    int fd = open("/dev/null", O_RDWR);
    must(fd > 0, "open");
    tell("", try_import(&h, fd));
    close(fd);
}
FACT(S_import_memfd, "Importing a descriptor of ordinary shared memory.")
{
    handle h = 0;
    int fd = memfd_create("not memory of a device", 0);
    must(fd > 0 && !ftruncate(fd, (off_t)(2 * G)), "memfd_create");
    tell("", try_import(&h, fd));
    close(fd);
}
FACT(S_import_pipe, "Importing a descriptor of a pipe.")
{
    handle h = 0;
    int ends[2];
    must(!pipe(ends), "pipe");
    tell("", try_import(&h, ends[0]));
    close(ends[0]);
    close(ends[1]);
}
FACT(S_import_type_0, "Importing as handle type 0.")
{
    handle h = 0;
    int fd = export_fd(create_exportable(G));
    TELL("", cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_NONE));
}
FACT(S_import_same, "Importing in the exporting process works, gives another handle, and aliases.")
{
    handle h = create_exportable(2 * G), h2 = 0;
    CUdeviceptr p = show(h, 2 * G);
    int fd = export_fd(h);
    tell("", try_import(&h2, fd));
    say("same=%d", h == h2);
    CUdeviceptr q = show(h2, 2 * G);
    DO(cuMemsetD8(p, 0x61, 2 * G));
    say("sees=0x%x", byte_at(q + G));
}
FACT(S_import_twice, "Importing twice: are the handles the same, and does each need its release.")
{
    handle h = create_exportable(G), a = 0, b = 0;
    int fd = export_fd(h);
    DO(cuMemImportFromShareableHandle(&a, (void *)(intptr_t)fd, FD));
    DO(cuMemImportFromShareableHandle(&b, (void *)(intptr_t)fd, FD));
    say("same=%d", a == b);
    TELL("release", cuMemRelease(a));
    TELL("release", cuMemRelease(b));
}
FACT(S_import_keeps_fd, "Importing leaves the descriptor open.")
{
    handle h = 0;
    int fd = export_fd(create_exportable(G));
    tell("", try_import(&h, fd));
    say("open=%d", fcntl(fd, F_GETFD) >= 0);
}
FACT(S_import_properties, "Properties of imported memory.")
{
    CUmemAllocationProp prop;
    handle h = 0;
    memset(&prop, 0xff, sizeof prop);
    setup(try_import(&h, export_fd(create_exportable(G))), "cuMemImportFromShareableHandle", __FILE__, __LINE__);
    TELL("", cuMemGetAllocationPropertiesFromHandle(&prop, h));
    say("type=%d location=%d/%d handles=%d", (int)prop.type, (int)prop.location.type, prop.location.id,
        (int)prop.requestedHandleTypes);
}
FACT(S_import_size, "Mapping imported memory with less, and more, than its size.")
{
    handle h = 0;
    CUdeviceptr p = reserve(4 * G);
    setup(try_import(&h, export_fd(create_exportable(2 * G))), "cuMemImportFromShareableHandle", __FILE__, __LINE__);
    tell("less", try_map(p, G, 0, h, 0));
    tell("more", try_map(p, 4 * G, 0, h, 0));
    tell("right", try_map(p, 2 * G, 0, h, 0));
}
FACT(S_import_export, "Exporting imported memory again.")
{
    handle h = 0;
    setup(try_import(&h, export_fd(create_exportable(G))), "cuMemImportFromShareableHandle", __FILE__, __LINE__);
    export_with(h, 1, 0);
}
FACT(S_import_read_only, "Imported memory mapped read-only: a write is refused there, and shows through the original.")
{
    handle h = create_exportable(G), h2 = 0;
    CUdeviceptr p = show(h, G), q = reserve(G);
    setup(try_import(&h2, export_fd(h)), "cuMemImportFromShareableHandle", __FILE__, __LINE__);
    map(q, G, h2);
    give_access(q, G, CU_MEM_ACCESS_FLAGS_PROT_READ);
    TELL("write", cuMemsetD8(q, 1, G));
    DO(cuMemsetD8(p, 12, G));
    say("reads=%d", byte_at(q));
}

/* ---- what keeps memory ---- */

FACT(S_fd_keeps_alive, "A descriptor keeps memory after unmapping and release; closing it gives the memory back.")
{
    size_t size = 32 * G, before = free_bytes();
    handle h = create_exportable(size);
    CUdeviceptr p = show(h, size);
    int fd = dup(export_fd(h));
    must(fd >= 0, "dup");
    DO(cuMemUnmap(p, size));
    DO(cuMemRelease(GONE(h)));
    say("with-two=%d", free_moved(before, size) == -1);
    close(fd);
    say("with-one=%d", free_moved(before, size) == -1);
}
FACT(S_fd_closed, "Closing the only descriptor after unmapping and release gives the memory back.")
{
    size_t size = 32 * G, before = free_bytes();
    handle h = create_exportable(size);
    int fd = -1;
    DO(cuMemExportToShareableHandle(&fd, h, FD, 0));
    DO(cuMemRelease(GONE(h)));
    say("open=%d", free_moved(before, size) == -1);
    close(fd);
    say("closed=%d", free_moved(before, size) == -1);
}
FACT(S_fd_revives, "Memory that only a descriptor keeps can be imported, with its bytes.")
{
    handle h = create_exportable(G), h2 = 0;
    CUdeviceptr p = show(h, G);
    int fd = export_fd(h);
    DO(cuMemsetD8(p, 0x2f, G));
    DO(cuCtxSynchronize());
    DO(cuMemUnmap(p, G));
    DO(cuMemRelease(GONE(h)));
    tell("", try_import(&h2, fd));
    say("byte=0x%x", byte_at(show(h2, G)));
}
FACT(S_import_counts_once, "An import takes no more memory.")
{
    size_t size = 32 * G;
    handle h = create_exportable(size), h2 = 0;
    int fd = export_fd(h);
    size_t before = free_bytes();
    setup(try_import(&h2, fd), "cuMemImportFromShareableHandle", __FILE__, __LINE__);
    show(h2, size);
    say("moved=%d", free_moved(before, size));
}

/* ---- two processes ---- */

enum { SHARED_SIZE_IN_G = 4 };

/* Another process: imports what the socket brings, reads a byte, writes one, and says what it saw. */
static int peer_reads(int from, int fd)
{
    size_t size = SHARED_SIZE_IN_G * G;
    handle h = 0;
    char line[128], wait = 0;
    CUresult r = try_import(&h, fd);
    if (r) {
        snprintf(line, sizeof line, "import=%d", (int)r);
        send_line(from, line);
        return 1;
    }
    CUdeviceptr p = show(h, size);
    snprintf(line, sizeof line, "peer-reads=0x%x", byte_at(p + G));
    if (drv->cuMemsetD8(p + 2 * G, 0x77, G) || drv->cuCtxSynchronize())
        snprintf(line, sizeof line, "peer-cannot-write");
    send_line(from, line);
    if (read(from, &wait, 1) < 0) return 1; /* until the other end closes, or says so */
    snprintf(line, sizeof line, "later=0x%x", byte_at(p + G));
    send_line(from, line);
    return 0;
}

/* Another process: makes memory, sends its descriptor, and ends. */
static int peer_makes(int to)
{
    size_t size = SHARED_SIZE_IN_G * G;
    handle h = create_exportable(size);
    CUdeviceptr p = show(h, size);
    DO(cuMemsetD8(p, 0x42, size));
    DO(cuCtxSynchronize());
    send_fd(to, export_fd(h));
    return 0;
}

int share_peer(const char *name, int to)
{
    if (!strcmp(name, "reads")) return peer_reads(to, receive_fd(to));
    if (!strcmp(name, "makes")) return peer_makes(to);
    return 2;
}

FACT(S_process, "Memory sent to another process by a descriptor over a socket: each sees what the other writes.")
{
    size_t size = SHARED_SIZE_IN_G * G;
    int peer = peer_start("reads");
    handle h = create_exportable(size);
    CUdeviceptr p = show(h, size);
    DO(cuMemsetD8(p, 0x55, size));
    DO(cuCtxSynchronize());
    int fd = -1;
    DO(cuMemExportToShareableHandle(&fd, h, FD, 0));
    send_fd(peer, fd);
    close(fd);
    say_line(peer);
    say("written=0x%x", byte_at(p + 2 * G));
    DO(cuMemsetD8(p, 0x56, 2 * G));
    DO(cuCtxSynchronize());
    send_line(peer, "");
    say_line(peer);
}
FACT(S_process_exporter_gives_up,
     "The importing process still has the memory when the exporter unmapped and released it.")
{
    size_t size = SHARED_SIZE_IN_G * G;
    int peer = peer_start("reads");
    handle h = create_exportable(size);
    CUdeviceptr p = show(h, size);
    DO(cuMemsetD8(p, 0x55, size));
    DO(cuCtxSynchronize());
    int fd = -1;
    DO(cuMemExportToShareableHandle(&fd, h, FD, 0));
    send_fd(peer, fd);
    close(fd);
    say_line(peer);
    DO(cuMemUnmap(p, size));
    DO(cuMemRelease(GONE(h)));
    send_line(peer, "");
    say_line(peer);
}
FACT(S_process_gone, "Memory of a process that has ended is there as long as its descriptor was passed on.")
{
    size_t size = SHARED_SIZE_IN_G * G;
    int peer = peer_start("makes"), fd = receive_fd(peer);
    char byte;
    handle h = 0;
    while (read(peer, &byte, 1) > 0) {} /* until the other process has ended */
    tell("import", try_import(&h, fd));
    close(fd);
    say("byte=0x%x", byte_at(show(h, size) + 3 * G));
}
FACT(S_numa, "Exportable memory on a NUMA node can be exported and imported.")
{
    CUmemAllocationProp prop = on_device;
    handle h = 0, h2 = 0;
    prop.location = location(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    prop.requestedHandleTypes = FD;
    tell("create", try_create(&h, G, prop, 0));
    tell("import", try_import(&h2, export_fd(h)));
    CUdeviceptr p = show(h, G), q = show(h2, G);
    DO(cuMemsetD8(p, 0x19, G));
    say("sees=0x%x", byte_at(q));
}
