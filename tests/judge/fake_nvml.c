/* A libnvidia-ml.so.1 for machines without a GPU: what Slipstream, torch and vLLM ask of NVML.
 *
 * FAKE_GPU=KIND[:COUNT][,KIND[:COUNT]...]   devices of the table gpus.txt beside this library
 * FAKE_GPU_OFF=1                            the driver is not loaded
 * FAKE_GPU_MIG=MIB[,MIB...]                 device 0 is in MIG mode with slices of that memory; 0 for none
 * FAKE_GPU_USERS=PID:MIB[,PID:MIB...]       processes that use memory of device 0
 *
 * A line of the table (build.py writes it from our machines), fields separated by tabs:
 * kind, name, capability, total, free, bus bits, memory clock, SM clock, its limit, mW, limit, nvlink
 * A field of 0 is answered with "not supported"; so is the memory query without a total (GB10). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9 };
enum { MOST = 32, MIB = 1 << 20 };

struct device {
    char name[96];
    int major, minor, nvlink, index, slice; /* slice: -1 for a whole GPU */
    unsigned long long total, free;
    unsigned bus, memory_clock, clock, clock_limit, power, power_limit;
};
struct user { unsigned pid; unsigned long long bytes; };

static struct device devices[MOST], slices[MOST];
static struct user users[MOST];
static int device_count, slice_count, user_count, mig, ready;

static int answer(unsigned value, unsigned *to) {
    if (!value) return NOT_SUPPORTED;
    *to = value;
    return OK;
}

static int put(const char *text, char *to, unsigned room) {
    if (strlen(text) + 1 > room) return TOO_SMALL;
    strcpy(to, text);
    return OK;
}

static int parse_line(char *line, const char *kind, struct device *d) {
    char *field = strsep(&line, "\t"), *name;
    if (strcmp(field, kind) || !(name = strsep(&line, "\t")) || !line) return 0;
    memset(d, 0, sizeof *d);
    snprintf(d->name, sizeof d->name, "%s", name);
    d->slice = -1;
    return sscanf(line, "%d.%d\t%llu\t%llu\t%u\t%u\t%u\t%u\t%u\t%u\t%d", &d->major, &d->minor, &d->total, &d->free,
                  &d->bus, &d->memory_clock, &d->clock, &d->clock_limit, &d->power, &d->power_limit, &d->nvlink) == 11;
}

static int find_kind(const char *kind, struct device *d) {
    char path[4096], line[512], *slash;
    Dl_info own;
    FILE *table;
    int found = 0;
    if (!dladdr((void *)find_kind, &own)) return 0;
    snprintf(path, sizeof path, "%s", own.dli_fname);
    slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 16, "gpus.txt");
    if (!(table = fopen(path, "r"))) return 0;
    while (!found && fgets(line, sizeof line, table)) {
        line[strcspn(line, "\n")] = 0;
        found = parse_line(line, kind, d);
    }
    fclose(table);
    return found;
}

static void read_devices(void) {
    char *copy = strdup(getenv("FAKE_GPU") ? getenv("FAKE_GPU") : ""), *rest = copy, *entry;
    while ((entry = strsep(&rest, ",")) && *entry) {
        char *colon = strchr(entry, ':');
        int count = colon ? atoi(colon + 1) : 1;
        struct device found;
        if (colon) *colon = 0;
        if (!find_kind(entry, &found)) {
            fprintf(stderr, "fake NVML: %s is not in gpus.txt\n", entry);
            exit(97);
        }
        for (; count > 0 && device_count < MOST; count--) {
            devices[device_count] = found;
            devices[device_count].index = device_count;
            device_count++;
        }
    }
    free(copy);
}

static void read_slices(void) {
    char *copy = strdup(getenv("FAKE_GPU_MIG")), *rest = copy, *entry;
    mig = 1;
    while ((entry = strsep(&rest, ",")) && atoi(entry) && slice_count < MOST) {
        struct device *d = &slices[slice_count];
        *d = devices[0];
        d->slice = slice_count++;
        d->total = atoll(entry) * MIB;
        d->free = d->total - 26 * MIB;
        strncat(d->name, " MIG", sizeof d->name - strlen(d->name) - 1);
    }
    free(copy);
}

static void read_users(void) {
    char *copy = strdup(getenv("FAKE_GPU_USERS")), *rest = copy, *entry;
    while ((entry = strsep(&rest, ",")) && strchr(entry, ':') && user_count < MOST) {
        users[user_count].pid = atoi(entry);
        users[user_count].bytes = atoll(strchr(entry, ':') + 1) * MIB;
        devices[0].free -= users[user_count++].bytes;
    }
    free(copy);
}

int nvmlInit_v2(void) {
    if (getenv("FAKE_GPU_OFF")) return NO_DRIVER;
    device_count = slice_count = user_count = mig = 0;
    read_devices();
    if (getenv("FAKE_GPU_MIG") && device_count) read_slices();
    if (getenv("FAKE_GPU_USERS") && device_count) read_users();
    ready = 1;
    return OK;
}
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { if (!ready) return UNINITIALIZED; ready = 0; return OK; }
const char *nvmlErrorString(int error) {
    switch (error) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case TOO_SMALL: return "Insufficient Size";
    case NO_DRIVER: return "Driver Not Loaded";
    default: return "Unknown Error";
    }
}

/* The system */
int nvmlSystemGetDriverVersion(char *to, unsigned room) { return put("580.95.05", to, room); }
int nvmlSystemGetNVMLVersion(char *to, unsigned room) { return put("13.580.95.05", to, room); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* Which devices there are */
int nvmlDeviceGetCount_v2(unsigned *count) { if (!ready) return UNINITIALIZED; *count = device_count; return OK; }
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **d) {
    if ((int)index >= device_count) return INVALID;
    *d = &devices[index];
    return OK;
}
int nvmlDeviceGetHandleByIndex(unsigned index, struct device **d) { return nvmlDeviceGetHandleByIndex_v2(index, d); }
int nvmlDeviceGetUUID(struct device *d, char *to, unsigned room) {
    char text[64];
    int whole = d->slice < 0, number = whole ? d->index : d->slice;
    snprintf(text, sizeof text, "%s-%08x-fa4e-4e1e-8000-%012x", whole ? "GPU" : "MIG", 0xa0000000u + number, number);
    return put(text, to, room);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **d) {
    char own[64];
    for (int i = 0; i < device_count + slice_count; i++) {
        struct device *one = i < device_count ? &devices[i] : &slices[i - device_count];
        nvmlDeviceGetUUID(one, own, sizeof own);
        if (!strcmp(own, uuid)) { *d = one; return OK; }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetIndex(struct device *d, unsigned *index) { if (d->slice >= 0) return INVALID; *index = d->index; return OK; }
int nvmlDeviceGetMinorNumber(struct device *d, unsigned *number) { *number = d->index; return OK; }
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(struct device *d, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 1 + d->index;
    pci->id = 0x10de;
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus & 0xff);
    return OK;
}

/* MIG, on device 0 only */
int nvmlDeviceGetMigMode(struct device *d, unsigned *current, unsigned *pending) {
    if (!d->total || d->major < 8) return NOT_SUPPORTED;
    *current = *pending = mig && d->index == 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(struct device *d, unsigned *count) { *count = mig && !d->index ? 7 : 0; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, unsigned index, struct device **part) {
    if (d->index || (int)index >= slice_count) return NOT_FOUND;
    *part = &slices[index];
    return OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *part, struct device **d) { *d = &devices[part->index]; return OK; }
int nvmlDeviceIsMigDeviceHandle(struct device *d, unsigned *is_part) { *is_part = d->slice >= 0; return OK; }

/* One device */
int nvmlDeviceGetName(struct device *d, char *to, unsigned room) { return put(d->name, to, room); }
int nvmlDeviceGetCudaComputeCapability(struct device *d, int *major, int *minor) { *major = d->major; *minor = d->minor; return OK; }
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(struct device *d, struct memory *to) {
    if (!d->total) return NOT_SUPPORTED;
    to->total = d->total;
    to->free = d->free;
    to->used = d->total - d->free;
    return OK;
}
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(struct device *d, struct memory_v2 *to) {
    if (!d->total) return NOT_SUPPORTED;
    to->total = d->total;
    to->reserved = 0;
    to->free = d->free;
    to->used = d->total - d->free;
    return OK;
}
int nvmlDeviceGetMemoryBusWidth(struct device *d, unsigned *bits) { return answer(d->bus, bits); }
int nvmlDeviceGetMaxClockInfo(struct device *d, int kind, unsigned *mhz) { return answer(kind == 2 ? d->memory_clock : d->clock_limit, mhz); }
int nvmlDeviceGetClockInfo(struct device *d, int kind, unsigned *mhz) { return answer(kind == 2 ? d->memory_clock : d->clock, mhz); }
int nvmlDeviceGetPowerUsage(struct device *d, unsigned *milliwatts) { return answer(d->power, milliwatts); }
int nvmlDeviceGetEnforcedPowerLimit(struct device *d, unsigned *milliwatts) { return answer(d->power_limit, milliwatts); }
struct rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(struct device *d, struct rates *to) { (void)d; to->gpu = to->memory = 0; return OK; }
int nvmlDeviceGetTemperature(struct device *d, int sensor, unsigned *celsius) { (void)d; (void)sensor; *celsius = 40; return OK; }
int nvmlDeviceGetPersistenceMode(struct device *d, unsigned *mode) { (void)d; *mode = 1; return OK; }
int nvmlDeviceGetNumaNodeId(struct device *d, unsigned *node) { (void)d; (void)node; return NOT_SUPPORTED; }
int nvmlDeviceGetCpuAffinity(struct device *d, unsigned count, unsigned long *mask) { (void)d; for (unsigned i = 0; i < count; i++) mask[i] = i ? 0 : 3; return OK; }

/* Who uses it: pynvml asks for the count first */
struct process { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };
int nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, unsigned *count, struct process *to) {
    unsigned room = *count;
    *count = d->index || d->slice >= 0 ? 0 : user_count;
    if (*count > room) return TOO_SMALL;
    for (unsigned i = 0; i < *count; i++) to[i] = (struct process){users[i].pid, users[i].bytes, ~0u, ~0u};
    return OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *d, unsigned *count, struct process *to) { (void)d; (void)to; *count = 0; return OK; }

/* Links between two devices */
int nvmlDeviceGetP2PStatus(struct device *a, struct device *b, int what, int *status) { (void)what; *status = a->nvlink && b->nvlink ? 0 : 3; return OK; }
int nvmlDeviceGetNvLinkState(struct device *d, unsigned link, unsigned *active) {
    if (!d->nvlink || link > 17 || (mig && !d->index)) return NOT_SUPPORTED;
    *active = 1;
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(struct device *a, struct device *b, int *level) { (void)a; (void)b; *level = 50; return OK; }
