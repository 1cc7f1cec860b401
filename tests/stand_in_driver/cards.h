/* The cards of the stand-in driver, and who uses how much of them. Both libraries include this; each has its own copy.
 *
 * STAND_IN_DRIVER names a directory, the same for all processes of the machine, containers or not:
 *
 *   cards      one line for each: UUID, memory in MiB, what a context takes in MiB, name; written by stand_in_driver.py
 *   processes  one place for each process that has called cuInit; made when needed, shared by mmap
 *
 * A process holds a POSIX lock on one byte of `processes` as long as it lives, so what it had is free when it ends,
 * however it ends, as with a driver; and the kernel tells who holds a lock in the PID namespace of whoever asks.
 * NVIDIA_VISIBLE_DEVICES (UUIDs or numbers) hides cards from a container, as NVIDIA's container runtime does.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CARDS = 16, MAX_PROCESSES = 256, TABLE_LOCK = 0, FIRST_PROCESS_LOCK = 1 };

static const uint64_t MIB = 1 << 20;

struct card { char uuid[96], name[96]; uint64_t memory, context; };

struct use {
    uint64_t memory;               /* with the contexts */
    uint32_t contexts;
    uint64_t busy_ns;              /* of all kernels so far */
    uint64_t sampled_ns, sampled_busy_ns;
    uint32_t percent;              /* between the last two samples */
};

struct process { int32_t pid; uint64_t pid_namespace; struct use uses[MAX_CARDS]; };

static struct card cards[MAX_CARDS];
static int card_count;
static int visible[MAX_CARDS], visible_count;      /* this process' number of a card -> its place in `cards` */
static struct process *processes;
static int table = -1;
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static uint64_t own_pid_namespace(void)
{
    struct stat found;
    return stat("/proc/self/ns/pid", &found) ? 0 : found.st_ino;
}

/* Whether a list of UUIDs or numbers, separated by commas, has this card. */
static int lists(const char *list, const char *uuid, int number)
{
    char text[4096], digits[16], *rest = text, *word;
    snprintf(text, sizeof text, "%s", list);
    snprintf(digits, sizeof digits, "%d", number);
    while ((word = strsep(&rest, ",")))
        if (!strcmp(word, uuid) || !strcmp(word, digits))
            return 1;
    return 0;
}

static int read_cards(const char *directory)
{
    char path[4096];
    unsigned long long memory_mib, context_mib;
    snprintf(path, sizeof path, "%s/cards", directory);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    card_count = 0;
    while (card_count < MAX_CARDS && fscanf(file, "%95s %llu %llu %95[^\n]", cards[card_count].uuid, &memory_mib,
                                            &context_mib, cards[card_count].name) == 4) {
        cards[card_count].memory = memory_mib * MIB;
        cards[card_count++].context = context_mib * MIB;
    }
    fclose(file);
    return 1;
}

static void find_visible(const char *list)
{
    int all = !list || !*list || !strcmp(list, "all") || !strcmp(list, "void");
    visible_count = 0;
    for (int card = 0; card < card_count; card++)
        if (all || lists(list, cards[card].uuid, card))
            visible[visible_count++] = card;
}

/* Read the cards and map the table; 0 where there is no driver. */
static int open_cards(void)
{
    const char *directory = getenv("STAND_IN_DRIVER");
    char path[4096];
    if (processes)
        return 1;
    if (!directory || !read_cards(directory))
        return 0;
    find_visible(getenv("NVIDIA_VISIBLE_DEVICES"));
    snprintf(path, sizeof path, "%s/processes", directory);
    table = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (table < 0)
        return 0;
    fchmod(table, 0666);                           /* users of containers are not root; fails if it is another's */
    size_t size = MAX_PROCESSES * sizeof *processes;
    if (ftruncate(table, size))
        return 0;
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, table, 0);
    processes = mapped == MAP_FAILED ? NULL : mapped;
    return processes != NULL;
}

/* The table's lock belongs to the open file, so that the two libraries of one process exclude each other. */
static void lock_table(short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = TABLE_LOCK, .l_len = 1};
    if (type == F_WRLCK)
        pthread_mutex_lock(&threads);
    fcntl(table, F_OFD_SETLKW, &lock);
    if (type == F_UNLCK)
        pthread_mutex_unlock(&threads);
}

static int is_own(const struct process *process)
{
    return process->pid == getpid() && process->pid_namespace == own_pid_namespace();
}

/* The process that has a place, by its number in the asker's PID namespace; 0 if it is gone or can't be seen there. */
static int32_t pid_of(const struct process *process, int *alive)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    lock.l_start = FIRST_PROCESS_LOCK + (process - processes);
    *alive = process->pid != 0;
    if (!*alive || is_own(process))
        return process->pid;
    *alive = !fcntl(table, F_GETLK, &lock) && lock.l_type != F_UNLCK;
    return *alive && lock.l_pid > 0 ? lock.l_pid : 0;
}

static uint64_t used_of(int card)
{
    uint64_t used = 0;
    for (struct process *process = processes; process < processes + MAX_PROCESSES; process++) {
        int alive;
        pid_of(process, &alive);
        used += alive ? process->uses[card].memory : 0;
    }
    return used;
}
