/*
 * NVML of a machine with two GPUs that is no machine: what it says stands in the folder that
 * STANDIN_NVML names. The file `memory` holds how many MiB of GPU 0 are in use, and as long as there
 * is a file `hang`, nobody is answered, and as long as there is a file `lost`, no memory is told.
 * A file `lost-1` says the same of GPU 1 alone, and a file `xid` with "1 79" in it is told once, as the
 * error 79 of GPU 1. A file `count` says how many GPUs there are, and the lines of `processes`, such as
 * "1 4711", which process computes on which, or "1 4711 300" with its MiB. STANDIN_NVML_NAME makes the UUIDs those of another machine.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define GPU_IS_LOST 15
#define XID_EVENT 0x8
#define MIB (1ULL << 20)

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

static unsigned long long used(void)
{
    char name[4096];
    unsigned long long mib = 0;
    FILE *file = fopen(path(name, "memory"), "r");
    if (file) {
        if (fscanf(file, "%llu", &mib) != 1)
            mib = 0;
        fclose(file);
    }
    return mib * MIB;
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; hang(); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code ? "not supported" : "success"; }

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    char name[4096];
    FILE *file = fopen(path(name, "count"), "r");
    *count = 2;
    if (file) {
        if (fscanf(file, "%u", count) != 1)
            *count = 2;
        fclose(file);
    }
    return SUCCESS;
}

/* Tells those of one GPU; as NVML does, says how many there are where there is too little room. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, process_t *found)
{
    char name[4096];
    size_t gpu;
    unsigned int pid, there = 0, room = *count;
    unsigned long long mib;
    char line[256];
    FILE *file = fopen(path(name, "processes"), "r");
    while (file && fgets(line, sizeof line, file)) {
        mib = 0;
        if (sscanf(line, "%zu %u %llu", &gpu, &pid, &mib) < 2 || gpu != (size_t)handle - 1)
            continue;
        if (there < room) {
            memset(&found[there], 0, sizeof *found);
            found[there].pid = pid;
            found[there].memory = mib * MIB;
        }
        there++;
    }
    if (file)
        fclose(file);
    *count = there;
    return there > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    *handle = (void *)(size_t)(index + 1);
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
    char name[4096], alone[32];
    hang();
    snprintf(alone, sizeof alone, "lost-%zu", (size_t)handle - 1);
    if (access(path(name, "lost"), F_OK) == 0 || access(path(name, alone), F_OK) == 0)
        return GPU_IS_LOST;
    memory->total = 16384 * MIB;
    memory->used = (size_t)handle == 1 ? used() : 0;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, rates_t *rates)
{
    (void)handle;
    memset(rates, 0, sizeof *rates);
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
