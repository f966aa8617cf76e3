/*
 * NVML of a machine that does not exist, with two GPUs: its answers are in the folder that
 * STANDIN_NVML names. GPUs are meant by the slots that they are in, from 0.
 *
 * memory, memory-1   how many MiB of GPU 0, or of GPU 1, are in use
 * busy-1             GPU 1 computes all the time
 * hang               as long as the file exists, no question is answered
 * lost, lost-1       as long as the file exists, no GPU, or not GPU 1, tells its memory
 * unknown-1          the same of GPU 1, with an error that names no cause, as most GPUs that have died
 * unhandled-1        as long as the file exists, GPU 1 is counted and has no handle
 * gone-1             programs that begin while the file exists do not count GPU 1: later GPUs move up
 * xid                "1 79" is reported once, as the error 79 of GPU 1
 * count              how many slots there are
 * processes          lines such as "1 4711", process 4711 computes on GPU 1, or "1 4711 300" with its MiB
 * drawing            the same of processes that draw
 * cuda/…             lines such as "1 4711 300": what process 4711 has taken by the stand-in for CUDA;
 *                    it counts as long as the process lives, which holds a lock on the file
 *
 * STANDIN_NVML_NAME makes the UUIDs those of another machine.
 */

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define GPU_IS_LOST 15
#define UNKNOWN 999
#define XID_EVENT 0x8
#define MIB (1ULL << 20)
#define RESERVED (600 * MIB)

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct {
    unsigned int pid;
    unsigned long long memory;
    unsigned int instance, compute;
} process_t;
typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned int instance, compute;
} event_t;

static char *path(char *into, const char *name)
{
    const char *folder = getenv("STANDIN_NVML");
    snprintf(into, 4096, "%s/%s", folder ? folder : ".", name);
    return into;
}

static void hang(void)
{
    char name[4096];
    while (access(path(name, "hang"), F_OK) == 0)
        usleep(5000);
}

static int is_there(const char *what, size_t slot)
{
    char name[4096], file[64];
    snprintf(file, sizeof file, "%s-%zu", what, slot);
    return access(path(name, file), F_OK) == 0;
}

static unsigned long long number_in(const char *file, unsigned long long otherwise)
{
    char name[4096];
    unsigned long long number = otherwise;
    FILE *opened = fopen(path(name, file), "r");
    if (opened) {
        if (fscanf(opened, "%llu", &number) != 1)
            number = otherwise;
        fclose(opened);
    }
    return number;
}

/* Whether a process that lives has locked this file, in whichever namespace it is. */
static int is_locked(FILE *file)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fileno(file), F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Calls back for each piece of memory that a living process has taken by the stand-in for CUDA. */
static void each_allocation(void (*take)(size_t, unsigned int, unsigned long long, void *), void *into)
{
    char folder[4096], line[256];
    size_t slot;
    unsigned int pid;
    unsigned long long mib;
    struct dirent *entry;
    DIR *opened = opendir(path(folder, "cuda"));
    while (opened && (entry = readdir(opened))) {
        char name[8192];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/%s", folder, entry->d_name);
        FILE *file = fopen(name, "r+");
        while (file && is_locked(file) && fgets(line, sizeof line, file))
            if (sscanf(line, "%zu %u %llu", &slot, &pid, &mib) == 3)
                take(slot, pid, mib, into);
        if (file)
            fclose(file);
    }
    if (opened)
        closedir(opened);
}

typedef struct { size_t slot; unsigned long long mib; } sum_t;

static void add(size_t slot, unsigned int pid, unsigned long long mib, void *into)
{
    sum_t *sum = into;
    (void)pid;
    if (slot == sum->slot)
        sum->mib += mib;
}

static unsigned long long used(size_t slot)
{
    char file[64];
    snprintf(file, sizeof file, slot ? "memory-%zu" : "memory", slot);
    sum_t sum = {slot, number_in(file, 0)};
    each_allocation(add, &sum);
    return sum.mib * MIB;
}

#define MOST 64
static size_t slots[MOST];
static unsigned int present = 0;

/* As NVML does: which GPUs a program sees, and in which order, is found out once. */
int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    hang();
    present = 0;
    unsigned long long count = number_in("count", 2);
    for (size_t slot = 0; slot < count && present < MOST; slot++)
        if (!is_there("gone", slot))
            slots[present++] = slot;
    return SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code ? "not supported" : "success"; }

int nvmlDeviceGetCount_v2(unsigned int *count) { *count = present; return SUCCESS; }

typedef struct { size_t slot; unsigned int there, room; process_t *found; } list_t;

static void note(size_t slot, unsigned int pid, unsigned long long mib, void *into)
{
    list_t *list = into;
    /* Of a process in another namespace only the memory is known, as NVML has it in containers. */
    if (slot != list->slot || !pid)
        return;
    if (list->there < list->room) {
        memset(&list->found[list->there], 0, sizeof *list->found);
        list->found[list->there].pid = pid;
        list->found[list->there].memory = mib * MIB;
    }
    list->there++;
}

static void note_file(const char *file, list_t *list)
{
    char name[4096], line[256];
    size_t slot;
    unsigned int pid;
    unsigned long long mib;
    FILE *opened = fopen(path(name, file), "r");
    while (opened && fgets(line, sizeof line, opened)) {
        mib = 0;
        if (sscanf(line, "%zu %u %llu", &slot, &pid, &mib) >= 2)
            note(slot, pid, mib, list);
    }
    if (opened)
        fclose(opened);
}

/* As NVML does, says how many there are where there is too little room. */
static int answer(list_t *list, unsigned int *count)
{
    *count = list->there;
    return list->there > list->room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, process_t *found)
{
    list_t list = {(size_t)handle - 1, 0, *count, found};
    note_file("processes", &list);
    each_allocation(note, &list);
    return answer(&list, count);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned int *count, process_t *found)
{
    list_t list = {(size_t)handle - 1, 0, *count, found};
    note_file("drawing", &list);
    return answer(&list, count);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    if (index >= present)
        return INVALID_ARGUMENT;
    if (is_there("unhandled", slots[index]))
        return GPU_IS_LOST;
    *handle = (void *)(slots[index] + 1);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
    const char *name = getenv("STANDIN_NVML_NAME");
    snprintf(uuid, length, "GPU-%s-%zu", name ? name : "standin", (size_t)handle - 1);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int length)
{
    (void)handle;
    snprintf(name, length, "Stand-in");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory)
{
    char name[4096];
    hang();
    if (access(path(name, "lost"), F_OK) == 0 || is_there("lost", (size_t)handle - 1))
        return GPU_IS_LOST;
    if (is_there("unknown", (size_t)handle - 1))
        return UNKNOWN;
    memory->total = 16384 * MIB;
    /* What the driver reserves for itself counts as used here, and not in the later version below. */
    memory->used = RESERVED + used((size_t)handle - 1);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory2_t;

int nvmlDeviceGetMemoryInfo_v2(void *handle, memory2_t *memory)
{
    memory_t first;
    int status = nvmlDeviceGetMemoryInfo(handle, &first);
    if (status != SUCCESS)
        return status;
    memory->total = first.total;
    memory->reserved = RESERVED;
    memory->used = first.used - RESERVED;
    memory->free = first.free;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, rates_t *rates)
{
    memset(rates, 0, sizeof *rates);
    rates->gpu = is_there("busy", (size_t)handle - 1) ? 97 : 0;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *count)
{
    (void)handle; (void)kind; (void)counter; (void)count;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned int *minor)
{
    (void)handle; (void)minor;
    return NOT_SUPPORTED;
}

int nvmlEventSetCreate(void **set) { *set = (void *)1; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

int nvmlDeviceRegisterEvents(void *handle, unsigned long long kinds, void *set)
{
    (void)handle; (void)kinds; (void)set;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, event_t *event, unsigned int milliseconds)
{
    char name[4096];
    size_t index = 0;
    unsigned long long code = 0;
    FILE *file = fopen(path(name, "xid"), "r");
    (void)set; (void)milliseconds;
    if (!file)
        return TIMEOUT;
    int found = fscanf(file, "%zu %llu", &index, &code);
    fclose(file);
    unlink(name);
    if (found != 2)
        return TIMEOUT;
    memset(event, 0, sizeof *event);
    event->device = (void *)(index + 1);
    event->type = XID_EVENT;
    event->data = code;
    return SUCCESS;
}
