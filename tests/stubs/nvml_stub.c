/*
 * A stand-in for libnvidia-ml.so.1, for tests of the real calls in a real process.
 *
 * What it does is set by environment variables, read at each call:
 *   NVML_STUB_GPUS    number of GPUs (2 unless told)
 *   NVML_STUB_INIT    return code of nvmlInitWithFlags (9: driver not loaded, 18: version mismatch)
 *   NVML_STUB_SLEEP   function, or function:index, that never returns
 *   NVML_STUB_CRASH   function, or function:index, that ends the process with SIGSEGV
 *   NVML_STUB_LOST    indices, comma separated, whose handle answers GPU_IS_LOST
 *   NVML_STUB_FELL    index whose calls answer GPU_IS_LOST from nvmlDeviceGetMemoryInfo on
 *   NVML_STUB_ONCE    file: the process that finds it absent makes it, and ends with SIGSEGV while it loads this library
 *   NVML_STUB_ENDLESS file: likewise, but loading never ends
 *   NVML_STUB_DENIED  function that answers NO_PERMISSION
 *   NVML_STUB_EVENTS  events that are waiting, see nvmlEventSetWait_v2
 * Compiled with -DOLD_DRIVER it lacks the functions that a driver of 2018 lacks.
 *
 * The forms of functions and structs are those of NVIDIA's public nvml.h. The values are those of an SXM5 H100 in a
 * guest: 18 active NVLinks of 26562 MB/s to switches whose addresses the hypervisor masks.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, DENIED = 4, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15, VERSION = 25 };
enum { LINKS = 18 };

typedef void *Device; /* index + 1 */
typedef unsigned int uint;
typedef unsigned long long ulong64;

static const char *setting(const char *name) {
    const char *text = getenv(name);
    return text ? text : "";
}

static int gpus(void) {
    const char *text = setting("NVML_STUB_GPUS");
    return *text ? atoi(text) : 2;
}

/* Tell whether `wanted` is this function, with this index or none. */
static int meant(const char *wanted, const char *function, int index) {
    size_t length = strlen(function);
    if (strncmp(wanted, function, length) != 0) return 0;
    if (wanted[length] == 0) return 1;
    return wanted[length] == ':' && atoi(wanted + length + 1) == index;
}

static int listed(const char *list, int index) {
    for (const char *p = list; *p;) {
        if (atoi(p) == index) return 1;
        p = strchr(p, ',');
        if (!p) return 0;
        p++;
    }
    return 0;
}

/* Make the file that `name` names; return whether this process is the one that made it. */
static int first_of(const char *name) {
    const char *path = setting(name);
    int fd = *path ? open(path, O_CREAT | O_EXCL | O_WRONLY, 0600) : -1;
    if (fd >= 0) close(fd);
    return fd >= 0;
}

__attribute__((constructor)) static void loaded(void) {
    if (first_of("NVML_STUB_ONCE")) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (first_of("NVML_STUB_ENDLESS"))
        for (;;) pause();
}

static int fell;

static int enter(const char *function, int index) {
    if (meant(setting("NVML_STUB_SLEEP"), function, index))
        for (;;) pause();
    if (meant(setting("NVML_STUB_CRASH"), function, index)) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (meant(setting("NVML_STUB_DENIED"), function, index)) return DENIED;
    const char *text = setting("NVML_STUB_FELL");
    if (*text && atoi(text) == index) {
        if (strncmp(function, "nvmlDeviceGetMemoryInfo", 23) == 0) fell = 1;
        if (fell) return LOST;
    }
    return SUCCESS;
}

#define INDEX(device) ((int)(long)(device)-1)
#define ENTER(index)                          \
    do {                                      \
        int code = enter(__func__, (index));  \
        if (code != SUCCESS) return code;     \
    } while (0)
#define TEXT(name, ...)                                  \
    int name(Device d, char *out, uint size) {           \
        ENTER(INDEX(d));                                 \
        snprintf(out, size, __VA_ARGS__);                \
        return SUCCESS;                                  \
    }
#define NUMBER(name, value)           \
    int name(Device d, uint *out) {   \
        ENTER(INDEX(d));              \
        *out = (value);               \
        return SUCCESS;               \
    }
#define REFUSED(name)                        \
    int name(Device d, void *out) {          \
        (void)out;                           \
        ENTER(INDEX(d));                     \
        return NOT_SUPPORTED;                \
    }

int nvmlInitWithFlags(uint flags) {
    (void)flags;
    ENTER(-1);
    const char *text = setting("NVML_STUB_INIT");
    return *text ? atoi(text) : SUCCESS;
}

int nvmlSystemGetDriverVersion(char *out, uint size) {
    ENTER(-1);
    snprintf(out, size, "580.159.04");
    return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *out, uint size) {
    ENTER(-1);
    snprintf(out, size, "13.580.159.04");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER(-1);
    *out = 13000;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(uint *out) {
    ENTER(-1);
    *out = (uint)gpus();
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, Device *out) {
    ENTER((int)index);
    if ((int)index >= gpus()) return INVALID;
    if (listed(setting("NVML_STUB_LOST"), (int)index)) return LOST;
    *out = (Device)(long)(index + 1);
    return SUCCESS;
}

struct pci {
    char old_bus_id[16];
    uint domain, bus, device, ids, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(Device d, struct pci *out) {
    ENTER(INDEX(d));
    memset(out, 0, sizeof *out);
    out->bus = 0x1a + (uint)INDEX(d);
    out->ids = 0x233010de;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return SUCCESS;
}

TEXT(nvmlDeviceGetUUID, "GPU-00000000-0000-4000-8000-%012d", INDEX(d) + 1)
TEXT(nvmlDeviceGetName, "NVIDIA H100 80GB HBM3")
TEXT(nvmlDeviceGetSerial, "16500230%05d", INDEX(d))
TEXT(nvmlDeviceGetVbiosVersion, "96.00.DA.00.0C")
TEXT(nvmlDeviceGetBoardPartNumber, "692-2G520-0200-000")
NUMBER(nvmlDeviceGetMinorNumber, (uint)INDEX(d))
NUMBER(nvmlDeviceGetBoardId, 0x1a00u + (uint)INDEX(d))
NUMBER(nvmlDeviceGetArchitecture, 9)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, 0)
NUMBER(nvmlDeviceGetPerformanceState, 0)
NUMBER(nvmlDeviceGetComputeMode, 0)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetVirtualizationMode, 1)

int nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor) {
    ENTER(INDEX(d));
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

struct memory {
    ulong64 total, free, used;
};

int nvmlDeviceGetMemoryInfo(Device d, struct memory *out) {
    ENTER(INDEX(d));
    *out = (struct memory){85520809984ull, 85017493504ull, 503316480ull};
    return SUCCESS;
}

int nvmlDeviceGetBAR1MemoryInfo(Device d, struct memory *out) {
    ENTER(INDEX(d));
    *out = (struct memory){137438953472ull, 137437249536ull, 1703936ull};
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device d, uint clock, uint *out) {
    ENTER(INDEX(d));
    *out = clock == 1 ? 345 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(Device d, uint clock, uint *out) {
    ENTER(INDEX(d));
    *out = clock == 1 ? 1980 : 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device d, uint sensor, uint *out) {
    (void)sensor;
    ENTER(INDEX(d));
    *out = 33;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device d, uint *out) {
    ENTER(INDEX(d));
    out[0] = out[1] = 0;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Device d, uint *current, uint *pending) {
    ENTER(INDEX(d));
    *current = *pending = 0;
    return SUCCESS;
}

int nvmlDeviceGetEccMode(Device d, uint *current, uint *pending) {
    ENTER(INDEX(d));
    *current = *pending = 1;
    return SUCCESS;
}

int nvmlDeviceGetCpuAffinity(Device d, uint words, ulong64 *out) {
    ENTER(INDEX(d));
    memset(out, 0, words * sizeof *out);
    out[0] = 0xffff; /* CPUs 0 to 15 */
    if (words > 16) out[16] = 1; /* CPU 1024 */
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(Device d, uint link, uint *out) {
    ENTER(INDEX(d));
    if (link >= LINKS) return INVALID;
    *out = 1;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkVersion(Device d, uint link, uint *out) {
    ENTER(INDEX(d));
    if (link >= LINKS) return INVALID;
    *out = 6;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device d, uint link, struct pci *out) {
    ENTER(INDEX(d));
    if (link >= LINKS) return INVALID;
    memset(out, 0, sizeof *out);
    out->domain = 0xffffffff;
    out->bus = out->device = 0xff;
    snprintf(out->bus_id, sizeof out->bus_id, "FFFFFFFF:FF:FF.0");
    return SUCCESS;
}

int nvmlDeviceGetNvLinkCapability(Device d, uint link, uint capability, uint *out) {
    (void)capability;
    ENTER(INDEX(d));
    if (link >= LINKS) return INVALID;
    *out = 1;
    return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, uint *out) {
    (void)b;
    ENTER(INDEX(a));
    *out = 30;
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(Device a, Device b, uint index, uint *out) {
    (void)b;
    ENTER(INDEX(a));
    *out = index == 4 ? 5 : 0;
    return SUCCESS;
}

/* A field value: union nvmlValue_t is eight bytes wide. */
struct field {
    uint id, scope;
    long long timestamp, latency;
    uint type;
    int code;
    ulong64 value;
};

int nvmlDeviceGetFieldValues(Device d, int count, struct field *out) {
    ENTER(INDEX(d));
    for (int i = 0; i < count; i++) {
        struct field *f = &out[i];
        f->type = 1; /* unsigned int */
        f->code = SUCCESS;
        f->value = 0;
        if (f->id >= 84 && f->id <= 89) f->value = 26562;
#ifdef OLD_DRIVER
        else f->code = INVALID;
#else
        else if (f->id == 91) f->value = LINKS;
        else if (f->id == 164 && f->scope < LINKS) f->value = 26562;
        else if (f->id == 94 || f->id == 95 || f->id == 169) f->type = 3; /* unsigned long long 0 */
        else if (f->id >= 161 && f->id <= 163 && f->scope < LINKS) f->value = 0;
        else f->code = NOT_SUPPORTED;
#endif
    }
    return SUCCESS;
}

#ifndef OLD_DRIVER
/* NVML_STUB_EVENTS: `index:type:data:gi:ci,...`, given out one by one; NVML_STUB_DENIED may refuse the registration. */
static int given, registered;

int nvmlEventSetCreate(void **out) {
    ENTER(-1);
    *out = &given;
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(Device d, ulong64 *out) {
    ENTER(INDEX(d));
    *out = 0x1f;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device d, ulong64 types, void *set) {
    (void)set;
    ENTER(INDEX(d));
    if (types & ~0x1full) return NOT_SUPPORTED;
    registered = 1;
    return SUCCESS;
}

int nvmlDeviceGetIndex(Device d, uint *out) {
    *out = (uint)INDEX(d);
    return SUCCESS;
}

struct event {
    Device device;
    ulong64 type, data;
    uint gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(void *set, struct event *out, uint timeout) {
    (void)set;
    (void)timeout;
    ENTER(-1);
    const char *p = setting("NVML_STUB_EVENTS");
    for (int skip = given; *p && skip; skip--) {
        p = strchr(p, ',');
        if (!p) return 10; /* TIMEOUT */
        p++;
    }
    int index;
    if (!registered || sscanf(p, "%d:%llx:%llu:%u:%u", &index, &out->type, &out->data, &out->gpu_instance,
                              &out->compute_instance) != 5)
        return 10;
    out->device = (Device)(long)(index + 1);
    given++;
    return SUCCESS;
}

struct memory_v2 {
    uint version;
    ulong64 total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(Device d, struct memory_v2 *out) {
    ENTER(INDEX(d));
    if (out->version != 0x02000028) return VERSION;
    out->total = 85520809984ull;
    out->reserved = 503316480ull;
    out->free = 85017493504ull;
    out->used = 0;
    return SUCCESS;
}

NUMBER(nvmlDeviceGetModuleId, (uint)INDEX(d) + 1)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetC2cModeInfoV, 0)
REFUSED(nvmlDeviceGetNumaNodeId)

int nvmlDeviceGetCurrentClocksEventReasons(Device d, ulong64 *out) {
    ENTER(INDEX(d));
    *out = 1;
    return SUCCESS;
}

int nvmlDeviceGetMemoryAffinity(Device d, uint words, ulong64 *out, uint scope) {
    (void)scope;
    ENTER(INDEX(d));
    memset(out, 0, words * sizeof *out);
    out[0] = 1;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Device d, uint link, uint *out) {
    ENTER(INDEX(d));
    if (link >= LINKS) return INVALID;
    *out = 2;
    return SUCCESS;
}

struct two {
    uint version, value;
};

int nvmlDeviceGetAddressingMode(Device d, struct two *out) {
    ENTER(INDEX(d));
    if (out->version != 0x1000008) return VERSION;
    out->value = 0;
    return SUCCESS;
}

/* Knows version 2 of the struct and not version 3, as drivers from 535 to 570 do. */
struct fabric {
    uint version;
    unsigned char cluster[16];
    uint status, clique;
    unsigned char state;
    uint mask;
};

int nvmlDeviceGetGpuFabricInfoV(Device d, struct fabric *out) {
    ENTER(INDEX(d));
    if (out->version != 0x02000024) return VERSION;
    memset(out->cluster, 0, sizeof out->cluster);
    out->status = SUCCESS;
    out->clique = 0;
    out->state = 3;
    out->mask = 0;
    return SUCCESS;
}

struct process {
    uint pid;
    ulong64 memory;
    uint gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(Device d, uint *count, struct process *out) {
    ENTER(INDEX(d));
    if (*count < 2) {
        *count = 2;
        return TOO_SMALL;
    }
    out[0] = (struct process){4242, 1073741824ull, 0xffffffff, 0xffffffff};
    out[1] = (struct process){4243, ~0ull, 0xffffffff, 0xffffffff}; /* not available */
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device d, uint *count, struct process *out) {
    (void)out;
    ENTER(INDEX(d));
    *count = 0;
    return SUCCESS;
}
#endif
