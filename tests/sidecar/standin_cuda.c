/*
 * The driver interface of CUDA, as much of it as tests/gpu/consumer.py calls, on the machine of
 * standin_nvml.c. Which GPUs a program sees follows from CUDA_VISIBLE_DEVICES as in CUDA: numbers count
 * what is present when the program begins, names may be the beginnings of UUIDs, and the first that means
 * no GPU ends the list. What is allocated is noted in the folder cuda, where the stand-in for NVML finds it.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_VALUE 1
#define NO_DEVICE 100
#define INVALID_DEVICE 101
#define MOST 64

static int present[MOST], visible[MOST];
static int presents = 0, visibles = 0, current = -1;

static char *path(char *into, const char *name)
{
    const char *folder = getenv("STANDIN_NVML");
    snprintf(into, 4096, "%s/%s", folder ? folder : ".", name);
    return into;
}

static int is_there(const char *what, int slot)
{
    char name[4096], file[64];
    snprintf(file, sizeof file, "%s-%d", what, slot);
    return access(path(name, file), F_OK) == 0;
}

static void find_present(void)
{
    char name[4096];
    int count = 2;
    FILE *file = fopen(path(name, "count"), "r");
    if (file) {
        if (fscanf(file, "%d", &count) != 1)
            count = 2;
        fclose(file);
    }
    for (int slot = 0; slot < count && presents < MOST; slot++)
        if (!is_there("gone", slot) && !is_there("lost", slot) &&
            !is_there("unknown", slot) && !is_there("unhandled", slot))
            present[presents++] = slot;
}

static int find(const char *word)
{
    char uuid[256], *end;
    const char *machine = getenv("STANDIN_NVML_NAME");
    long number = strtol(word, &end, 10);
    if (end != word && !*end)
        return number >= 0 && number < presents ? present[number] : -1;
    for (int i = 0; i < presents; i++) {
        snprintf(uuid, sizeof uuid, "GPU-%s-%d", machine ? machine : "standin", present[i]);
        if (*word && strncmp(uuid, word, strlen(word)) == 0)
            return present[i];
    }
    return -1;
}

int cuInit(unsigned int flags)
{
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    (void)flags;
    presents = visibles = 0;
    find_present();
    if (!given) {
        memcpy(visible, present, sizeof present);
        visibles = presents;
    } else {
        char words[4096], *rest = words, *word;
        snprintf(words, sizeof words, "%s", given);
        while ((word = strsep(&rest, ",")) && visibles < MOST) {
            int slot = find(word);
            if (slot < 0)
                break;
            visible[visibles++] = slot;
        }
    }
    return visibles ? SUCCESS : NO_DEVICE;
}

int cuDeviceGetCount(int *count) { *count = visibles; return SUCCESS; }

int cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= visibles)
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(size_t)(device + 1);
    return SUCCESS;
}

int cuCtxSetCurrent(void *context)
{
    current = (int)(size_t)context - 1;
    return SUCCESS;
}

/* The id of this process, or 0 in another namespace than that of the test: it means nothing out there. */
static int own_pid(void)
{
    char name[4096], theirs[128] = "", ours[128] = "";
    FILE *file = fopen(path(name, "pidns"), "r");
    if (file) {
        if (fscanf(file, "%127s", theirs) != 1)
            theirs[0] = 0;
        fclose(file);
    }
    if (readlink("/proc/self/ns/pid", ours, sizeof ours - 1) < 0)
        return 0;
    return !*theirs || strcmp(theirs, ours) == 0 ? (int)getpid() : 0;
}

/* Open a file of this process, and hold a lock on it until the process ends. */
static int open_notes(void)
{
    static int notes = -1;
    static pid_t owner = 0;
    char name[4096];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (owner == getpid())
        return notes;
    mkdir(path(name, "cuda"), 0777);
    notes = mkostemp(path(name, "cuda/XXXXXX"), O_CLOEXEC);
    owner = getpid();
    return notes < 0 || fcntl(notes, F_SETLKW, &lock) < 0 ? -1 : notes;
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
    int notes = open_notes();
    if (current < 0 || notes < 0)
        return INVALID_VALUE;
    dprintf(notes, "%d %d %zu\n", visible[current], own_pid(), bytes >> 20);
    *address = 1;
    return SUCCESS;
}
