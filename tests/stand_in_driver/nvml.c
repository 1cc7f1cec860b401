/* A libnvidia-ml.so.1 for the cards of cards.h: what HAMi-core asks of it, and a program that wants to know its memory.
 * The agent's own NVML, with health, events and MIG, is in tests/fakes/nvml. Prototypes and numbers are those of nvml.h.
 */
#include "cards.h"

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

static const uint64_t SAMPLE_NS = 100000000;

struct memory { uint64_t total, free, used; };
struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };
struct process_v1 { unsigned pid; uint64_t memory; };
struct process_v3 { unsigned pid; uint64_t memory; unsigned gpu_instance, compute_instance; };
struct sample { unsigned pid; uint64_t timestamp_us; unsigned cores, memory, encoder, decoder; };

int nvmlInit_v2(void)
{
    return open_cards() ? OK : DRIVER_NOT_LOADED;
}

int nvmlInit(void)
{
    return nvmlInit_v2();
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

int nvmlShutdown(void)
{
    return OK;
}

const char *nvmlErrorString(int code)
{
    return code == OK ? "Success" : "the stand-in driver refuses";
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = visible_count;
    return processes ? OK : UNINITIALIZED;
}

int nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct card **card)
{
    if (!processes)
        return UNINITIALIZED;
    if (index >= (unsigned)visible_count)
        return INVALID_ARGUMENT;
    *card = &cards[visible[index]];
    return OK;
}

int nvmlDeviceGetHandleByIndex(unsigned index, struct card **card)
{
    return nvmlDeviceGetHandleByIndex_v2(index, card);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct card **card)
{
    for (int i = 0; i < visible_count; i++)
        if (!strcmp(cards[visible[i]].uuid, uuid)) {
            *card = &cards[visible[i]];
            return OK;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(struct card *card, unsigned *index)
{
    for (*index = 0; *index < (unsigned)visible_count; ++*index)
        if (visible[*index] == card - cards)
            return OK;
    return INVALID_ARGUMENT;
}

static int give_text(const char *text, char *to, unsigned length)
{
    return (unsigned)snprintf(to, length, "%s", text) < length ? OK : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetUUID(struct card *card, char *uuid, unsigned length)
{
    return give_text(card->uuid, uuid, length);
}

int nvmlDeviceGetName(struct card *card, char *name, unsigned length)
{
    return give_text(card->name, name, length);
}

static uint64_t locked_use(const struct card *card)
{
    lock_table(F_WRLCK);
    uint64_t used = used_of(card - cards);
    lock_table(F_UNLCK);
    return used;
}

int nvmlDeviceGetMemoryInfo(struct card *card, struct memory *memory)
{
    uint64_t used = locked_use(card);
    *memory = (struct memory){card->memory, card->memory - used, used};
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(struct card *card, struct memory_v2 *memory)
{
    uint64_t used = locked_use(card);
    *memory = (struct memory_v2){memory->version, card->memory, 0, card->memory - used, used};
    return OK;
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

static int list_processes(struct card *card, unsigned *count, void *found, size_t size)
{
    unsigned room = found ? *count : 0;
    *count = 0;
    lock_table(F_WRLCK);
    for (struct process *process = processes; process < processes + MAX_PROCESSES; process++) {
        int alive, pid = pid_of(process, &alive);
        const struct use *use = &process->uses[card - cards];
        if (!alive || !use->contexts)
            continue;
        struct process_v3 entry = {pid, use->memory, ~0u, ~0u};
        if (*count < room)
            memcpy((char *)found + *count * size, &entry, size);
        ++*count;
    }
    lock_table(F_UNLCK);
    return *count > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses(struct card *card, unsigned *count, void *found)
{
    return list_processes(card, count, found, sizeof(struct process_v1));
}

int nvmlDeviceGetComputeRunningProcesses_v2(struct card *card, unsigned *count, void *found)
{
    return list_processes(card, count, found, sizeof(struct process_v3));
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct card *card, unsigned *count, void *found)
{
    return list_processes(card, count, found, sizeof(struct process_v3));
}

static unsigned percent_of(struct use *use)
{
    uint64_t now = now_ns(), past = now - use->sampled_ns;
    if (past >= SAMPLE_NS) {
        uint64_t percent = (use->busy_ns - use->sampled_busy_ns) * 100 / past;
        use->percent = percent > 100 ? 100 : percent;
        use->sampled_ns = now;
        use->sampled_busy_ns = use->busy_ns;
    }
    return use->percent;
}

int nvmlDeviceGetProcessUtilization(struct card *card, struct sample *found, unsigned *count, uint64_t since_us)
{
    unsigned room = found ? *count : 0;
    (void)since_us;
    *count = 0;
    lock_table(F_WRLCK);
    for (struct process *process = processes; process < processes + MAX_PROCESSES; process++) {
        int alive, pid = pid_of(process, &alive);
        struct use *use = &process->uses[card - cards];
        if (!alive || !use->contexts)
            continue;
        if (*count < room)
            found[*count] = (struct sample){pid, now_ns() / 1000, percent_of(use), 0, 0, 0};
        ++*count;
    }
    lock_table(F_UNLCK);
    return *count > room ? INSUFFICIENT_SIZE : OK;
}
