/* A libnvidia-ml.so.1 for machines without NVIDIA cards: it answers from a text file, which may change at any time.
 *
 * The file is named by FAKE_NVML_STATE and written by fake_nvml.py, always as a new file renamed over the old one. One
 * line is one record: a kind, then key=value, separated by tabs.
 *
 *   driver   version= cuda=12040      or, when it is gone: error=9, what every call returns (nvmlReturn_t)
 *            limits=PATH              a file to which each limit of memory is added; without: the library is too old
 *   card     uuid= name= memory=BYTES bus= numa= mig=0|1 migs=7 events=MASK ecc= retired= remap_pending= remap_failed= recovery=
 *            used=BYTES gpu=PERCENT controller=PERCENT reserved=BYTES
 *   mig      card=UUID place= uuid= name= memory=BYTES gi= ci=
 *   nvlink   card=UUID link= active=0|1 bus= type=0 (a card) | 2 (a switch)
 *   pair     a=UUID b=UUID ancestor= nvlink=STATUS
 *   process  card=UUID pid= memory=BYTES list=compute|graphics|mps sm=PERCENT
 *   event    id= card=UUID type= data= gi= ci=       each is delivered once to each event set made before it was written
 *   fail     call=NAME|* card=UUID code=             such calls return this; without a card: for all of them
 *   hang     call=NAME|*                             such calls return only when this line has gone
 *
 * What a record leaves out is not supported. A driver that was gone has to be initialised anew. Layouts of structures are
 * those of nvml.h. One thread at a time. Only libc is needed, so that it runs in any container of the same machine.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMED_OUT = 10, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, OUT_OF_MEMORY = 20,
       UNKNOWN = 999 };

enum { MAX_TEXT = 1 << 20, MAX_RECORDS = 8192, MAX_PAIRS = 24, MAX_HANDLES = 1024, MAX_SETS = 64, MAX_WATCHED = 64 };

enum { RECOVERY_ACTION = 230 };

static const uint64_t UNKNOWN_AMOUNT = ~0ull;
static const unsigned NO_INSTANCE = 0xFFFFFFFFu;

struct record { char *kind; int pairs; char *key[MAX_PAIRS], *value[MAX_PAIRS]; };
struct handle { char uuid[96]; };
struct watched { struct handle *card; uint64_t types; };
struct event_set { int used, inotify; uint64_t delivered; int count; struct watched watched[MAX_WATCHED]; };

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { uint64_t total, free, used; };
struct rates { unsigned gpu, memory; };
struct sample { unsigned pid; unsigned long long time_us; unsigned sm, memory, encoder, decoder; };
struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };
struct field { uint32_t id, scope; int64_t timestamp, latency; unsigned type; int code; uint64_t value; };
struct new_limits { const char *group; uint64_t soft, hard; };
struct found_limits { const char *group; uint64_t soft, hard, used; };
struct event { struct handle *card; uint64_t type, data; unsigned gi, ci; };
struct process { unsigned pid; uint64_t memory; unsigned gi, ci; };

static char text[MAX_TEXT];
static struct record records[MAX_RECORDS];
static int record_count;
static struct stat read_from;
static struct handle handles[MAX_HANDLES];
static struct event_set sets[MAX_SETS];
static int initialised;

/* --- the state ------------------------------------------------------------------------------------------------- */

static void parse(void)
{
    char *line, *next_line = text;
    record_count = 0;
    while (record_count < MAX_RECORDS && (line = strtok_r(next_line, "\n", &next_line))) {
        struct record *record = &records[record_count++];
        char *field, *rest = line;
        record->kind = strtok_r(rest, "\t", &rest);
        record->pairs = 0;
        while (record->pairs < MAX_PAIRS && (field = strtok_r(rest, "\t", &rest))) {
            char *equals = strchr(field, '=');
            if (!equals)
                continue;
            *equals = 0;
            record->key[record->pairs] = field;
            record->value[record->pairs++] = equals + 1;
        }
    }
}

/* Read the file if it has changed. Returns 0 if there is none. */
static int refresh(void)
{
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now;
    if (!path || stat(path, &now))
        return 0;
    if (now.st_ino == read_from.st_ino && now.st_size == read_from.st_size &&
        now.st_mtim.tv_sec == read_from.st_mtim.tv_sec && now.st_mtim.tv_nsec == read_from.st_mtim.tv_nsec)
        return 1;
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    size_t length = fread(text, 1, MAX_TEXT - 1, file);
    fclose(file);
    text[length] = 0;
    read_from = now;
    parse();
    return 1;
}

static const char *value_of(const struct record *record, const char *key)
{
    for (int i = 0; record && i < record->pairs; i++)
        if (!strcmp(record->key[i], key))
            return record->value[i];
    return NULL;
}

static uint64_t number_of(const struct record *record, const char *key, uint64_t otherwise)
{
    const char *value = value_of(record, key);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

static int says(const struct record *record, const char *key, const char *wanted)
{
    const char *value = value_of(record, key);
    return value && !strcmp(value, wanted);
}

/* The next record of a kind with this value under key, after `last`; NULL for either end. */
static struct record *next(struct record *last, const char *kind, const char *key, const char *value)
{
    for (struct record *record = last ? last + 1 : records; record < records + record_count; record++)
        if (!strcmp(record->kind, kind) && (!key || says(record, key, value)))
            return record;
    return NULL;
}

static struct record *with_number(const char *kind, const char *card, const char *key, uint64_t number)
{
    struct record *record = NULL;
    while ((record = next(record, kind, "card", card)))
        if (number_of(record, key, UNKNOWN_AMOUNT) == number)
            return record;
    return NULL;
}

/* --- who is asked, and whether the call fails --------------------------------------------------------------------- */

static struct record *device_of(const char *uuid)
{
    struct record *card = next(NULL, "card", "uuid", uuid);
    return card ? card : next(NULL, "mig", "uuid", uuid);
}

static int failure(const char *call, const char *uuid)
{
    const char *parent = uuid ? value_of(next(NULL, "mig", "uuid", uuid), "card") : NULL;
    struct record *fail = NULL;
    while ((fail = next(fail, "fail", NULL, NULL))) {
        const char *card = value_of(fail, "card");
        int about = !card || (uuid && !strcmp(card, uuid)) || (parent && !strcmp(card, parent));
        if (about && (says(fail, "call", "*") || says(fail, "call", call)))
            return (int)number_of(fail, "code", NOT_SUPPORTED);
    }
    return OK;
}

static int hangs(const char *call)
{
    struct record *hang = NULL;
    while ((hang = next(hang, "hang", NULL, NULL)))
        if (says(hang, "call", "*") || says(hang, "call", call))
            return 1;
    return 0;
}

static int enter_driver(const char *call)
{
    const struct timespec pause = {0, 20 * 1000 * 1000};
    while (refresh() && hangs(call))
        nanosleep(&pause, NULL);
    int gone = refresh() ? (int)number_of(next(NULL, "driver", NULL, NULL), "error", OK) : DRIVER_NOT_LOADED;
    if (gone) {
        initialised = 0;
        return gone;
    }
    return strncmp(call, "nvmlInit", 8) && !initialised ? UNINITIALIZED : OK;
}

static int enter(const char *call, const struct handle *handle)
{
    int code = enter_driver(call);
    if (code)
        return code;
    if (handle && !device_of(handle->uuid))
        return GPU_IS_LOST;
    return failure(call, handle ? handle->uuid : NULL);
}

#define ENTER(handle)                             \
    do {                                          \
        int code = enter(__func__, handle);       \
        if (code)                                 \
            return code;                          \
    } while (0)

/* A handle stays the same for a UUID, as long as the process lives. */
static struct handle *handle_of(const char *uuid)
{
    for (int i = 0; i < MAX_HANDLES; i++) {
        if (!handles[i].uuid[0])
            snprintf(handles[i].uuid, sizeof handles[i].uuid, "%s", uuid);
        if (!strcmp(handles[i].uuid, uuid))
            return &handles[i];
    }
    return NULL;
}

static int copy(const char *value, char *buffer, unsigned length)
{
    if (!value)
        return NOT_SUPPORTED;
    if (strlen(value) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return OK;
}

static int give(const struct record *record, const char *key, unsigned *answer)
{
    if (!value_of(record, key))
        return NOT_SUPPORTED;
    *answer = (unsigned)number_of(record, key, 0);
    return OK;
}

static int give_pci(const char *bus_id, struct pci *pci)
{
    if (!bus_id)
        return NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    sscanf(bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->legacy, sizeof pci->legacy, "%04x:%02x:%02x.0", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", bus_id);
    return OK;
}

/* --- the library -------------------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    ENTER(NULL);
    initialised = 1;
    return OK;
}

int nvmlShutdown(void)
{
    ENTER(NULL);
    initialised = 0;
    return OK;
}

const char *nvmlErrorString(int code)
{
    (void)code;
    return "an error of the fake NVML";
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned length)
{
    ENTER(NULL);
    return copy(value_of(next(NULL, "driver", NULL, NULL), "version"), buffer, length);
}

int nvmlSystemGetCudaDriverVersion_v2(unsigned *version)
{
    ENTER(NULL);
    return give(next(NULL, "driver", NULL, NULL), "cuda", version);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(NULL);
    *count = 0;
    for (struct record *card = NULL; (card = next(card, "card", NULL, NULL));)
        ++*count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **handle)
{
    ENTER(NULL);
    struct record *card = next(NULL, "card", NULL, NULL);
    while (card && index--)
        card = next(card, "card", NULL, NULL);
    if (!card)
        return INVALID_ARGUMENT;
    *handle = handle_of(value_of(card, "uuid"));
    return *handle ? enter(__func__, *handle) : OUT_OF_MEMORY;
}

int nvmlDeviceGetUUID(struct handle *handle, char *buffer, unsigned length)
{
    ENTER(handle);
    return copy(handle->uuid, buffer, length);
}

int nvmlDeviceGetName(struct handle *handle, char *buffer, unsigned length)
{
    ENTER(handle);
    return copy(value_of(device_of(handle->uuid), "name"), buffer, length);
}

int nvmlDeviceGetPciInfo_v3(struct handle *handle, struct pci *pci)
{
    ENTER(handle);
    return give_pci(value_of(device_of(handle->uuid), "bus"), pci);
}

int nvmlDeviceGetMemoryInfo(struct handle *handle, struct memory *memory)
{
    ENTER(handle);
    const struct record *device = device_of(handle->uuid);
    if (!value_of(device, "memory"))
        return NOT_SUPPORTED;
    memory->total = number_of(device, "memory", 0);
    memory->used = number_of(device, "used", 0) + number_of(device, "reserved", 0); /* as NVIDIA's drivers count here */
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetUtilizationRates(struct handle *handle, struct rates *rates)
{
    ENTER(handle);
    const struct record *device = device_of(handle->uuid);
    if (!value_of(device, "gpu"))
        return NOT_SUPPORTED;
    rates->gpu = (unsigned)number_of(device, "gpu", 0);
    rates->memory = (unsigned)number_of(device, "controller", 0);
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(struct handle *handle, struct memory_v2 *memory)
{
    ENTER(handle);
    const struct record *device = device_of(handle->uuid);
    if (!value_of(device, "memory") || !value_of(device, "reserved"))
        return NOT_SUPPORTED;
    memory->total = number_of(device, "memory", 0);
    memory->reserved = number_of(device, "reserved", 0);
    memory->used = number_of(device, "used", 0);
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}

/* Where limits are kept: one line for each call, `set`, card, group, soft, hard. Others may add lines of their own. */
static int limits_file(const struct handle *handle, const char *group, const char **path)
{
    struct stat found;
    *path = value_of(next(NULL, "driver", NULL, NULL), "limits");
    if (!*path)
        return FUNCTION_NOT_FOUND;
    if (next(NULL, "mig", "uuid", handle->uuid) || says(device_of(handle->uuid), "mig", "1"))
        return NOT_SUPPORTED;
    return stat(group, &found) || !S_ISDIR(found.st_mode) ? NOT_FOUND : OK;
}

int nvmlDeviceSetMemoryLimits_v1(struct handle *handle, const struct new_limits *limits)
{
    char line[4096];
    const char *path;
    ENTER(handle);
    int code = limits_file(handle, limits->group, &path);
    if (code)
        return code;
    int length = snprintf(line, sizeof line, "set\t%s\t%s\t%" PRIu64 "\t%" PRIu64 "\n", handle->uuid, limits->group,
                          limits->soft, limits->hard);
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return UNKNOWN;
    ssize_t written = write(file, line, (size_t)length); /* in one step, so lines of several writers never mix */
    close(file);
    return written == length ? OK : UNKNOWN;
}

int nvmlDeviceGetMemoryLimits_v1(struct handle *handle, struct found_limits *limits)
{
    char line[4096], card[96], group[3000];
    uint64_t soft, hard;
    const char *path;
    ENTER(handle);
    int code = limits_file(handle, limits->group, &path);
    FILE *file = code ? NULL : fopen(path, "r");
    if (!file)
        return code ? code : NOT_SUPPORTED;
    code = NOT_SUPPORTED; /* what a driver says of a group that was never limited */
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "set\t%95[^\t]\t%2999[^\t]\t%" SCNu64 "\t%" SCNu64, card, group, &soft, &hard) == 4 &&
            !strcmp(card, handle->uuid) && !strcmp(group, limits->group)) {
            limits->soft = soft;
            limits->hard = hard;
            limits->used = 0;
            code = OK;
        }
    fclose(file);
    return code;
}

int nvmlDeviceGetMemoryAffinity(struct handle *handle, unsigned words, unsigned long *nodes, unsigned scope)
{
    unsigned node;
    (void)scope;
    ENTER(handle);
    int code = give(device_of(handle->uuid), "numa", &node);
    if (code)
        return code;
    if (node / 64 >= words)
        return INSUFFICIENT_SIZE;
    memset(nodes, 0, words * sizeof *nodes);
    nodes[node / 64] |= 1ul << node % 64;
    return OK;
}

int nvmlDeviceGetMigMode(struct handle *handle, unsigned *current, unsigned *pending)
{
    ENTER(handle);
    int code = give(device_of(handle->uuid), "mig", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(struct handle *handle, unsigned *count)
{
    ENTER(handle);
    return give(device_of(handle->uuid), "migs", count);
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *handle, unsigned place, struct handle **mig)
{
    ENTER(handle);
    const struct record *record = with_number("mig", handle->uuid, "place", place);
    if (!record)
        return NOT_FOUND;
    *mig = handle_of(value_of(record, "uuid"));
    return *mig ? OK : OUT_OF_MEMORY;
}

int nvmlDeviceGetGpuInstanceId(struct handle *handle, unsigned *id)
{
    ENTER(handle);
    return give(device_of(handle->uuid), "gi", id);
}

int nvmlDeviceGetComputeInstanceId(struct handle *handle, unsigned *id)
{
    ENTER(handle);
    return give(device_of(handle->uuid), "ci", id);
}

int nvmlDeviceGetRemappedRows(struct handle *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    ENTER(handle);
    *corrected = *uncorrected = 0;
    int code = give(device_of(handle->uuid), "remap_pending", pending);
    return code ? code : give(device_of(handle->uuid), "remap_failed", failed);
}

int nvmlDeviceGetRetiredPagesPendingStatus(struct handle *handle, unsigned *pending)
{
    ENTER(handle);
    return give(device_of(handle->uuid), "retired", pending);
}

int nvmlDeviceGetTotalEccErrors(struct handle *handle, unsigned type, unsigned counter, uint64_t *count)
{
    unsigned uncorrected;
    ENTER(handle);
    int code = give(device_of(handle->uuid), "ecc", &uncorrected);
    *count = type == 1 && counter == 0 && !code ? uncorrected : 0;
    return code;
}

int nvmlDeviceGetFieldValues(struct handle *handle, int count, struct field *fields)
{
    ENTER(handle);
    for (int i = 0; i < count; i++) {
        unsigned action = 0;
        int is_known = fields[i].id == RECOVERY_ACTION;
        fields[i].code = is_known ? give(device_of(handle->uuid), "recovery", &action) : NOT_SUPPORTED;
        fields[i].type = 1; /* unsigned int */
        fields[i].value = action;
    }
    return OK;
}

int nvmlDeviceGetNvLinkState(struct handle *handle, unsigned link, unsigned *active)
{
    ENTER(handle);
    if (!next(NULL, "nvlink", "card", handle->uuid))
        return NOT_SUPPORTED;
    const struct record *record = with_number("nvlink", handle->uuid, "link", link);
    return record ? give(record, "active", active) : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct handle *handle, unsigned link, struct pci *pci)
{
    ENTER(handle);
    return give_pci(value_of(with_number("nvlink", handle->uuid, "link", link), "bus"), pci);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(struct handle *handle, unsigned link, unsigned *type)
{
    ENTER(handle);
    return give(with_number("nvlink", handle->uuid, "link", link), "type", type);
}

static const struct record *pair_of(const struct handle *one, const struct handle *other)
{
    struct record *pair = NULL;
    while ((pair = next(pair, "pair", NULL, NULL)))
        if ((says(pair, "a", one->uuid) && says(pair, "b", other->uuid)) ||
            (says(pair, "a", other->uuid) && says(pair, "b", one->uuid)))
            return pair;
    return NULL;
}

int nvmlDeviceGetTopologyCommonAncestor(struct handle *one, struct handle *other, unsigned *level)
{
    ENTER(one);
    return give(pair_of(one, other), "ancestor", level);
}

int nvmlDeviceGetP2PStatus(struct handle *one, struct handle *other, unsigned index, unsigned *status)
{
    ENTER(one);
    return index == 2 ? give(pair_of(one, other), "nvlink", status) : NOT_SUPPORTED;
}

static int list_processes(const struct handle *handle, const char *list, unsigned *count, struct process *found)
{
    unsigned room = *count;
    struct record *record = NULL;
    *count = 0;
    while ((record = next(record, "process", "card", handle->uuid))) {
        if (!says(record, "list", list))
            continue;
        if (found && *count < room)
            found[*count] = (struct process){(unsigned)number_of(record, "pid", 0),
                                             number_of(record, "memory", UNKNOWN_AMOUNT), NO_INSTANCE, NO_INSTANCE};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct handle *handle, unsigned *count, struct process *found)
{
    ENTER(handle);
    return list_processes(handle, "compute", count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct handle *handle, unsigned *count, struct process *found)
{
    ENTER(handle);
    return list_processes(handle, "graphics", count, found);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct handle *handle, unsigned *count, struct process *found)
{
    ENTER(handle);
    return list_processes(handle, "mps", count, found);
}

/* A process that has not computed has no sample; with none at all, NVML says that it has not found any. */
int nvmlDeviceGetProcessUtilization(struct handle *handle, struct sample *found, unsigned *count, unsigned long long since_us)
{
    ENTER(handle);
    unsigned room = found ? *count : 0;
    struct record *record = NULL;
    *count = 0;
    while ((record = next(record, "process", "card", handle->uuid))) {
        if (!value_of(record, "sm"))
            continue;
        if (*count < room)
            found[*count] = (struct sample){(unsigned)number_of(record, "pid", 0), since_us + 1,
                                            (unsigned)number_of(record, "sm", 0), 0, 0, 0};
        ++*count;
    }
    return !*count ? NOT_FOUND : *count > room ? INSUFFICIENT_SIZE : OK;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

/* Notice a new state file at once: polling it would cost more than all that is measured with this library. */
static int watch_directory(void)
{
    const char *path = getenv("FAKE_NVML_STATE");
    char directory[4096];
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash)
        *slash = 0;
    int inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (inotify >= 0)
        inotify_add_watch(inotify, slash ? (slash == directory ? "/" : directory) : ".", IN_MOVED_TO);
    return inotify;
}

int nvmlEventSetCreate(struct event_set **made)
{
    ENTER(NULL);
    for (struct event_set *set = sets; set < sets + MAX_SETS; set++) {
        if (set->used)
            continue;
        memset(set, 0, sizeof *set);
        set->used = 1;
        set->inotify = watch_directory();
        for (struct record *event = NULL; (event = next(event, "event", NULL, NULL));)
            if (number_of(event, "id", 0) > set->delivered)
                set->delivered = number_of(event, "id", 0);
        *made = set;
        return OK;
    }
    return OUT_OF_MEMORY;
}

int nvmlEventSetFree(struct event_set *set)
{
    if (set->inotify >= 0)
        close(set->inotify);
    set->used = 0;
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(struct handle *handle, uint64_t *types)
{
    ENTER(handle);
    const struct record *card = device_of(handle->uuid);
    if (!value_of(card, "events"))
        return NOT_SUPPORTED;
    *types = number_of(card, "events", 0);
    return OK;
}

int nvmlDeviceRegisterEvents(struct handle *handle, uint64_t types, struct event_set *set)
{
    ENTER(handle);
    if (set->count == MAX_WATCHED)
        return OUT_OF_MEMORY;
    set->watched[set->count++] = (struct watched){handle, types};
    return OK;
}

/* Take the oldest event that nobody has seen yet; 0 if there is none. */
static int deliver(struct event_set *set, struct event *found)
{
    struct record *oldest;
    do {
        oldest = NULL;
        for (struct record *event = NULL; (event = next(event, "event", NULL, NULL));)
            if (number_of(event, "id", 0) > set->delivered &&
                (!oldest || number_of(event, "id", 0) < number_of(oldest, "id", 0)))
                oldest = event;
        if (!oldest)
            return 0;
        set->delivered = number_of(oldest, "id", 0);
        for (int i = 0; i < set->count; i++) {
            uint64_t type = number_of(oldest, "type", 0);
            if (!says(oldest, "card", set->watched[i].card->uuid) || !(set->watched[i].types & type))
                continue;
            *found = (struct event){set->watched[i].card, type, number_of(oldest, "data", 0),
                                    (unsigned)number_of(oldest, "gi", NO_INSTANCE),
                                    (unsigned)number_of(oldest, "ci", NO_INSTANCE)};
            return 1;
        }
    } while (oldest);
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *found, unsigned timeout_ms)
{
    char news[4096];
    int64_t until_ms = now_ms() + timeout_ms;
    for (;;) {
        ENTER(NULL);
        for (int i = 0; i < set->count; i++) {
            int code = failure(__func__, set->watched[i].card->uuid);
            if (code)
                return code;
        }
        if (deliver(set, found))
            return OK;
        int64_t left_ms = until_ms - now_ms();
        if (left_ms <= 0)
            return TIMED_OUT;
        struct pollfd file = {set->inotify, POLLIN, 0};
        poll(&file, 1, (int)left_ms);
        while (set->inotify >= 0 && read(set->inotify, news, sizeof news) > 0)
            ;
    }
}
