/* A CUDA program that does one step after another, and prints a line for each: what it saw, or CUDA's name for the error.
 *
 *   cuda_steps STEP...   -: the next steps come from standard input, a line each
 *
 *   device N             use this device from now on
 *   total                cuDeviceTotalMem, in MiB
 *   info                 cuMemGetInfo, in MiB
 *   nvml                 what nvidia-smi would show of this device: used and total, in MiB
 *   processes            the processes on this device, by NVML, and how many MiB each uses
 *   alloc MIB            cuMemAlloc
 *   free                 free what was allocated last
 *   launch COUNT BLOCKS  start kernels, and wait for them; prints how many milliseconds that took
 *   hold                 wait until standard input ends
 *
 * It finds the driver as CUDA's runtime does: by dlopen and cuGetProcAddress; with CUDA_STEPS_BY=dlsym by dlsym alone.
 * It ends with 0 whatever the driver says: what it prints is the result. It runs on real cards as well.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ALLOCATIONS = 4096, VERSION = 12000 };

static const char KERNEL[] = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry nothing()\n{\n ret;\n}\n";

static void *driver;
static int device;
static uint64_t allocations[MAX_ALLOCATIONS];
static int allocation_count;

static int (*address_of)(const char *, void **, int, uint64_t, int *);
static int (*error_name)(int, const char **);

static void *function(const char *name, const char *symbol)
{
    void *found = NULL;
    int status;
    if (!address_of || address_of(name, &found, VERSION, 0, &status) || !found)
        found = dlsym(driver, symbol);
    if (!found) {
        printf("the driver has no %s\n", symbol);
        exit(1);
    }
    return found;
}

static const char *named(int code)
{
    const char *name = NULL;
    return !error_name(code, &name) && name ? name : "an error without a name";
}

#define CALL(name, symbol, types, ...) (((int(*) types)function(name, symbol))(__VA_ARGS__))

static int use_device(int number)
{
    void *context;
    int code = CALL("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", (void **, int), &context, number);
    if (!code)
        code = CALL("cuCtxSetCurrent", "cuCtxSetCurrent", (void *), context);
    if (!code)
        device = number;
    return code;
}

static int start(void)
{
    const char *by = getenv("CUDA_STEPS_BY");
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        printf("no driver: %s\n", dlerror());
        return 1;
    }
    *(void **)&error_name = dlsym(driver, "cuGetErrorName");
    if (!by || strcmp(by, "dlsym"))
        *(void **)&address_of = dlsym(driver, "cuGetProcAddress_v2");
    int code = CALL("cuInit", "cuInit", (unsigned), 0);
    if (!code)
        code = use_device(0);
    if (code)
        printf("start %s\n", named(code));
    return code;
}

static void total(void)
{
    size_t bytes = 0;
    int code = CALL("cuDeviceTotalMem", "cuDeviceTotalMem_v2", (size_t *, int), &bytes, device);
    printf("total %s total_mib=%zu\n", named(code), bytes >> 20);
}

static void info(void)
{
    size_t available = 0, all = 0;
    int code = CALL("cuMemGetInfo", "cuMemGetInfo_v2", (size_t *, size_t *), &available, &all);
    printf("info %s free_mib=%zu total_mib=%zu\n", named(code), available >> 20, all >> 20);
}

/* NVML's handle of the device, and its library; 0 and a line where there is none. */
static void *nvml_device(void **library)
{
    void *handle = NULL;
    *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!*library || ((int (*)(void))dlsym(*library, "nvmlInit_v2"))() ||
        ((int (*)(unsigned, void **))dlsym(*library, "nvmlDeviceGetHandleByIndex_v2"))(device, &handle))
        printf("no NVML\n");
    return handle;
}

static void nvml(void)
{
    struct { uint64_t total, free, used; } memory = {0, 0, 0};
    void *library, *handle = nvml_device(&library);
    if (handle && !((int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo"))(handle, &memory))
        printf("nvml used_mib=%llu total_mib=%llu\n", (unsigned long long)memory.used >> 20,
               (unsigned long long)memory.total >> 20);
}

static void processes(void)
{
    struct { unsigned pid; uint64_t bytes; unsigned gpu_instance, compute_instance; } found[256];
    unsigned count = 256;
    void *library, *handle = nvml_device(&library);
    if (!handle ||
        ((int (*)(void *, unsigned *, void *))dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"))(handle, &count,
                                                                                                        found))
        return;
    printf("processes");
    for (unsigned i = 0; i < count; i++)
        printf(" %u=%llu", found[i].pid, (unsigned long long)found[i].bytes >> 20);
    printf("\n");
}

static void alloc(unsigned long mib)
{
    uint64_t address = 0;
    int code = CALL("cuMemAlloc", "cuMemAlloc_v2", (uint64_t *, size_t), &address, (size_t)mib << 20);
    if (!code && allocation_count < MAX_ALLOCATIONS)
        allocations[allocation_count++] = address;
    printf("alloc %s mib=%lu\n", named(code), mib);
}

static void free_last(void)
{
    int code = 1;
    if (allocation_count)
        code = CALL("cuMemFree", "cuMemFree_v2", (uint64_t), allocations[--allocation_count]);
    printf("free %s\n", named(code));
}

static void launch(unsigned long count, unsigned blocks)
{
    void *module, *kernel = NULL;
    struct timespec began, ended;
    int code = CALL("cuModuleLoadData", "cuModuleLoadData", (void **, const void *), &module, KERNEL);
    if (!code)
        code = CALL("cuModuleGetFunction", "cuModuleGetFunction", (void **, void *, const char *), &kernel, module,
                    "nothing");
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (unsigned long i = 0; i < count && !code; i++)
        code = CALL("cuLaunchKernel", "cuLaunchKernel",
                    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
                    kernel, blocks, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    if (!code)
        code = CALL("cuCtxSynchronize", "cuCtxSynchronize", (void), );
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("launch %s ms=%lld\n", named(code),
           (ended.tv_sec - began.tv_sec) * 1000ll + (ended.tv_nsec - began.tv_nsec) / 1000000);
}

static void hold(void)
{
    printf("hold\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

static void step(const char *text)
{
    unsigned long first = 0, second = 0;
    char verb[16] = "";
    sscanf(text, "%15s %lu %lu", verb, &first, &second);
    if (!strcmp(verb, "device"))
        printf("device %s\n", named(use_device((int)first)));
    else if (!strcmp(verb, "total"))
        total();
    else if (!strcmp(verb, "info"))
        info();
    else if (!strcmp(verb, "nvml"))
        nvml();
    else if (!strcmp(verb, "processes"))
        processes();
    else if (!strcmp(verb, "alloc"))
        alloc(first);
    else if (!strcmp(verb, "free"))
        free_last();
    else if (!strcmp(verb, "launch"))
        launch(first, second ? (unsigned)second : 1);
    else if (!strcmp(verb, "hold"))
        hold();
    else
        printf("unknown step: %s\n", text);
    fflush(stdout);
}

int main(int count, char **steps)
{
    char line[256];
    if (start())
        return 1;
    for (int i = 1; i < count; i++) {
        if (strcmp(steps[i], "-")) {
            step(steps[i]);
            continue;
        }
        while (fgets(line, sizeof line, stdin)) {
            line[strcspn(line, "\n")] = 0;
            step(line);
        }
    }
    return 0;
}
