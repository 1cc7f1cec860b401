/* A libcuda.so.1 that computes nothing and counts everything: memory by process and card (cards.h), and kernels, of which
 * each block takes a microsecond. It has what HAMi-core and cuda_steps.c call. Prototypes and numbers are those of cuda.h.
 */
#include "cards.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, NOT_FOUND = 500 };

enum { MULTIPROCESSORS = 16, THREADS_PER_MULTIPROCESSOR = 39, MULTIPROCESSOR_COUNT = 16, DRIVER_VERSION = 12080,
       MAX_ALLOCATIONS = 4096 };

struct allocation { uint64_t address, size; int device; };

static int devices[MAX_CARDS], device_count = -1;       /* CUDA's number of a card -> its place in `cards` */
static struct process *own;
static struct allocation allocations[MAX_ALLOCATIONS];
static uint64_t next_address = 0x700000000000;
static __thread int current_device = -1;

/* CUDA_VISIBLE_DEVICES: in its order, up to the first that is not there. */
static void find_devices(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    char text[4096], *rest = text, *word;
    device_count = 0;
    if (!list) {
        for (int i = 0; i < visible_count; i++)
            devices[device_count++] = visible[i];
        return;
    }
    snprintf(text, sizeof text, "%s", list);
    while ((word = strsep(&rest, ",")) && device_count < MAX_CARDS) {
        int found = -1;
        for (int i = 0; i < visible_count; i++)
            if (lists(word, cards[visible[i]].uuid, i))
                found = visible[i];
        if (found < 0)
            return;
        devices[device_count++] = found;
    }
}

static int take_place(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    for (struct process *process = processes; process < processes + MAX_PROCESSES; process++) {
        int alive;
        pid_of(process, &alive);
        if (alive && !is_own(process))
            continue;
        lock.l_start = FIRST_PROCESS_LOCK + (process - processes);
        if (fcntl(table, F_SETLK, &lock))
            continue;
        memset(process, 0, sizeof *process);
        process->pid = getpid();
        process->pid_namespace = own_pid_namespace();
        own = process;
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}

int cuInit(unsigned flags)
{
    (void)flags;
    if (!open_cards())
        return NO_DEVICE;
    if (own && is_own(own))
        return SUCCESS;
    find_devices();
    if (!device_count)
        return NO_DEVICE;
    lock_table(F_WRLCK);
    int code = take_place();
    lock_table(F_UNLCK);
    return code;
}

int cuDriverGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    *count = device_count;
    return device_count < 0 ? NOT_INITIALIZED : SUCCESS;
}

int cuDeviceGet(int *device, int number)
{
    *device = number;
    return number >= 0 && number < device_count ? SUCCESS : INVALID_DEVICE;
}

static const struct card *card_of(int device)
{
    return device >= 0 && device < device_count ? &cards[devices[device]] : NULL;
}

int cuDeviceGetName(char *name, int length, int device)
{
    const struct card *card = card_of(device);
    if (card)
        snprintf(name, length, "%s", card->name);
    return card ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    const struct card *card = card_of(device);
    const char *text = card ? strchr(card->uuid, '-') : NULL;
    memset(uuid, 0, 16);
    for (int digit = 0; text && *text && digit < 32; text++)
        if (*text != '-')
            uuid[digit / 2] |= strtol((char[]){*text, 0}, NULL, 16) << (digit % 2 ? 0 : 4), digit++;
    return card ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == MULTIPROCESSOR_COUNT ? MULTIPROCESSORS
             : attribute == THREADS_PER_MULTIPROCESSOR ? 2048 : 1;
    return card_of(device) ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    const struct card *card = card_of(device);
    *bytes = card ? card->memory : 0;
    return card ? SUCCESS : INVALID_DEVICE;
}

/* --- contexts: one for each device, the primary one --------------------------------------------------------------- */

/* Count memory of this process on a device, up or down, if the card has it. */
static int count(int device, int64_t bytes)
{
    int card = devices[device];
    lock_table(F_WRLCK);
    int fits = bytes < 0 || used_of(card) + bytes <= cards[card].memory;
    if (fits)
        own->uses[card].memory += bytes;
    lock_table(F_UNLCK);
    return fits ? SUCCESS : OUT_OF_MEMORY;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    if (!own)
        return NOT_INITIALIZED;
    if (!card_of(device))
        return INVALID_DEVICE;
    struct use *use = &own->uses[devices[device]];
    if (!use->contexts && count(device, card_of(device)->context))
        return OUT_OF_MEMORY;
    use->contexts++;
    *context = (void *)(uintptr_t)(device + 1);
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    struct use *use = own && card_of(device) ? &own->uses[devices[device]] : NULL;
    if (!use || !use->contexts)
        return INVALID_CONTEXT;
    if (!--use->contexts)
        count(device, -(int64_t)card_of(device)->context);
    return SUCCESS;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = own && card_of(device) && own->uses[devices[device]].contexts;
    return card_of(device) ? SUCCESS : INVALID_DEVICE;
}

int cuCtxSetCurrent(void *context)
{
    current_device = (int)(uintptr_t)context - 1;
    return SUCCESS;
}

int cuCtxGetCurrent(void **context)
{
    *context = (void *)(uintptr_t)(current_device + 1);
    return SUCCESS;
}

int cuCtxGetDevice(int *device)
{
    *device = current_device;
    return current_device < 0 ? INVALID_CONTEXT : SUCCESS;
}

int cuCtxSynchronize(void)
{
    return current_device < 0 ? INVALID_CONTEXT : SUCCESS;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

int cuMemAlloc_v2(uint64_t *address, size_t size)
{
    struct allocation *place = NULL;
    if (current_device < 0)
        return INVALID_CONTEXT;
    if (!size)
        return INVALID_VALUE;
    pthread_mutex_lock(&threads);
    for (struct allocation *each = allocations; each < allocations + MAX_ALLOCATIONS && !place; each++)
        if (!each->size)
            place = each;
    if (place)
        *place = (struct allocation){next_address, size, current_device}, next_address += (size | 511) + 1;
    pthread_mutex_unlock(&threads);
    if (!place)
        return OUT_OF_MEMORY;
    if (count(current_device, size)) {
        place->size = 0;
        return OUT_OF_MEMORY;
    }
    *address = place->address;
    return SUCCESS;
}

int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags)
{
    (void)flags;
    return cuMemAlloc_v2(address, size);
}

int cuMemFree_v2(uint64_t address)
{
    for (struct allocation *each = allocations; each < allocations + MAX_ALLOCATIONS; each++)
        if (each->size && each->address == address) {
            count(each->device, -(int64_t)each->size);
            each->size = 0;
            return SUCCESS;
        }
    return INVALID_VALUE;
}

int cuMemGetInfo_v2(size_t *free, size_t *total)
{
    if (current_device < 0)
        return INVALID_CONTEXT;
    lock_table(F_WRLCK);
    *total = cards[devices[current_device]].memory;
    *free = *total - used_of(devices[current_device]);
    lock_table(F_UNLCK);
    return SUCCESS;
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

int cuModuleLoadData(void **module, const void *image)
{
    *module = (void *)image;
    return image ? SUCCESS : INVALID_VALUE;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = module;
    return name ? SUCCESS : NOT_FOUND;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra)
{
    (void)block_x, (void)block_y, (void)block_z, (void)shared_bytes, (void)stream, (void)parameters, (void)extra;
    if (current_device < 0 || !function)
        return INVALID_CONTEXT;
    uint64_t started = now_ns(), blocks = (uint64_t)grid_x * grid_y * grid_z;
    struct timespec time = {blocks / 1000000, blocks % 1000000 * 1000};
    nanosleep(&time, NULL);
    __atomic_fetch_add(&own->uses[devices[current_device]].busy_ns, now_ns() - started, __ATOMIC_RELAXED);
    return SUCCESS;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

int cuGetErrorName(int code, const char **name)
{
    static const struct { int code; const char *name; } names[] = {
        {SUCCESS, "CUDA_SUCCESS"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) {
            *name = names[i].name;
            return SUCCESS;
        }
    return INVALID_VALUE;
}

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status);

int cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags)
{
    int status;
    return cuGetProcAddress_v2(symbol, found, version, flags, &status);
}

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status)
{
#define NAMED(name) {#name, (void *)name}
    static const struct { const char *name; void *function; } functions[] = {
        NAMED(cuInit), NAMED(cuDriverGetVersion), NAMED(cuDeviceGetCount), NAMED(cuDeviceGet), NAMED(cuDeviceGetName),
        {"cuDeviceGetUuid", (void *)cuDeviceGetUuid_v2}, NAMED(cuDeviceGetAttribute),
        {"cuDeviceTotalMem", (void *)cuDeviceTotalMem_v2}, NAMED(cuDevicePrimaryCtxRetain),
        {"cuDevicePrimaryCtxRelease", (void *)cuDevicePrimaryCtxRelease_v2}, NAMED(cuDevicePrimaryCtxGetState),
        NAMED(cuCtxSetCurrent), NAMED(cuCtxGetCurrent), NAMED(cuCtxGetDevice), NAMED(cuCtxSynchronize),
        {"cuMemAlloc", (void *)cuMemAlloc_v2}, NAMED(cuMemAllocManaged), {"cuMemFree", (void *)cuMemFree_v2},
        {"cuMemGetInfo", (void *)cuMemGetInfo_v2}, NAMED(cuModuleLoadData), NAMED(cuModuleGetFunction),
        NAMED(cuLaunchKernel), NAMED(cuGetErrorName), {"cuGetProcAddress", (void *)cuGetProcAddress_v2}};
    (void)version, (void)flags;
    *found = NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, symbol))
            *found = functions[i].function;
    if (status)
        *status = *found ? 0 : 1;
    return *found ? SUCCESS : NOT_FOUND;
}
