/* A libnvidia-ml.so.1 without a GPU, for tests: the real pynvml loads it and reads what a control file says.

   FAKE_NVML_CTL names the control file; it is read again at each call. FAKE_NVML_CALLS, if set, names a file to which
   one line "function gpu" is added per call. A line of the control file is one of

     model A-B DEVICEID MIB CC NAME   GPUs A to B (or one: A); DEVICEID as in 20b210de, CC as in 8.0
     init CODE                        what nvmlInit answers
     gpu N lost|ok|reset_required     state of a GPU: every call on it answers 15 or 16
     set N FIGURE VALUE               a figure: temp util mem power energy clock width gen replays fan ecc action
     rc N FUNCTION CODE               one function of one GPU answers CODE
     missing FUNCTION                 a symbol that this driver does not have (13)
     hang FUNCTION MS                 it takes so long
     crash N                          the process aborts when GPU N is read
     after FUNCTION CALLS LINE        LINE counts once FUNCTION was called so often by this process
     xid N CODE                       one event, told once per process and line
     order 3,1,0,2                    GPUs by index
     proc N PID MIB                   a compute process
     rows N CORRECTED UNCORRECTED PENDING FAILED
     driver VERSION                   default 570.86.15

   FUNCTION is the symbol without "nvmlDeviceGet" or "nvml", such as MemoryInfo_v2. Layouts are those of NVML 13. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS 16
#define PROCS 8
#define NAMES 64
typedef int ret;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } pci_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_t;
typedef union { double d; unsigned u; unsigned long long ull; } value_t;
typedef struct { unsigned field, scope; long long time, latency; int type; ret code; value_t value; } field_t;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event_t;

static struct gpu {
    int there, state, crash, cc_major, cc_minor, nproc, rows[4];
    unsigned id;
    long long mib, temp, util, mem, power, energy, clock, width, gen, replays, fan, ecc, action;
    char name[96];
    process_t proc[PROCS];
} gpus[GPUS];
static int order[GPUS], count, init_code;
static char driver[32];
static struct { char name[40]; int calls; } called[NAMES];
static char asked[40]; static int asked_gpu, answer; static long sleep_ms;
static int told; /* xid lines told */
static struct { int gpu; long long xid; } xids[64]; static int nxids;

static int *calls_of(const char *name) {
    for (int i = 0; i < NAMES; i++) {
        if (!called[i].name[0]) snprintf(called[i].name, sizeof called[i].name, "%s", name);
        if (!strcmp(called[i].name, name)) return &called[i].calls;
    }
    return &called[NAMES - 1].calls;
}

static void set_figure(struct gpu *g, const char *name, long long v) {
    struct { const char *name; long long *at; } all[] = {
        {"temp", &g->temp}, {"util", &g->util}, {"mem", &g->mem}, {"power", &g->power}, {"energy", &g->energy},
        {"clock", &g->clock}, {"width", &g->width}, {"gen", &g->gen}, {"replays", &g->replays}, {"fan", &g->fan},
        {"ecc", &g->ecc}, {"action", &g->action}};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) if (!strcmp(all[i].name, name)) *all[i].at = v;
}

static void take(const char *line) {
    char a[96], b[96]; int n, m, used = 0; long long v; unsigned id; struct gpu *g;
    if (sscanf(line, "after %95s %d %n", a, &n, &used) == 2 && used) {
        if (*calls_of(a) > n) take(line + used);
    } else if (sscanf(line, "model %95s %x %lld %d.%d %n", a, &id, &v, &n, &m, &used) == 5 && used) {
        int first = 0, last = 0;
        if (sscanf(a, "%d-%d", &first, &last) < 2) last = first;
        for (int i = first; i <= last && i < GPUS; i++) {
            g = &gpus[i]; g->there = 1; g->id = id; g->mib = v; g->cc_major = n; g->cc_minor = m;
            g->temp = 35; g->power = 60000; g->clock = 1410; g->width = 16; g->gen = 4;
            snprintf(g->name, sizeof g->name, "%s", line + used);
            g->name[strcspn(g->name, "\n")] = 0;
            if (i >= count) count = i + 1;
        }
    } else if (sscanf(line, "init %d", &n) == 1) init_code = n;
    else if (sscanf(line, "gpu %d %95s", &n, a) == 2 && n < GPUS)
        gpus[n].state = !strcmp(a, "lost") ? 15 : !strcmp(a, "reset_required") ? 16 : 0;
    else if (sscanf(line, "set %d %95s %lld", &n, a, &v) == 3 && n < GPUS) set_figure(&gpus[n], a, v);
    else if (sscanf(line, "rc %d %95s %d", &n, a, &m) == 3) { if (n == asked_gpu && !strcmp(a, asked)) answer = m; }
    else if (sscanf(line, "missing %95s", a) == 1) { if (!strcmp(a, asked)) answer = 13; }
    else if (sscanf(line, "hang %95s %lld", a, &v) == 2) { if (!strcmp(a, asked)) sleep_ms = v; }
    else if (sscanf(line, "crash %d", &n) == 1 && n < GPUS) gpus[n].crash = 1;
    else if (sscanf(line, "xid %d %lld", &n, &v) == 2 && nxids < 64) { xids[nxids].gpu = n; xids[nxids++].xid = v; }
    else if (sscanf(line, "proc %d %d %lld", &n, &m, &v) == 3 && n < GPUS && gpus[n].nproc < PROCS) {
        process_t *p = &gpus[n].proc[gpus[n].nproc++]; p->pid = m; p->used = v << 20;
    } else if (sscanf(line, "rows %d %95s", &n, a) == 2 && n < GPUS)
        sscanf(line, "rows %*d %d %d %d %d", &gpus[n].rows[0], &gpus[n].rows[1], &gpus[n].rows[2], &gpus[n].rows[3]);
    else if (sscanf(line, "driver %31s", b) == 1) snprintf(driver, sizeof driver, "%.31s", b);
    else if (sscanf(line, "order %95s", a) == 1) {
        int i = 0;
        for (char *p = strtok(a, ","); p && i < GPUS; p = strtok(NULL, ",")) order[i++] = atoi(p);
    }
}

/* Read the control file for a call of `name` on a GPU (-1: none); return what the call must answer. */
static ret enter(const char *name, int gpu) {
    char line[256]; const char *path = getenv("FAKE_NVML_CTL"), *log = getenv("FAKE_NVML_CALLS");
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(gpus, 0, sizeof gpus);
    count = init_code = nxids = answer = 0; sleep_ms = 0; asked_gpu = gpu;
    snprintf(asked, sizeof asked, "%s", name); snprintf(driver, sizeof driver, "570.86.15");
    for (int i = 0; i < GPUS; i++) order[i] = i;
    ++*calls_of(name);
    while (file && fgets(line, sizeof line, file)) take(line);
    if (file) fclose(file);
    if (log && (file = fopen(log, "a"))) { fprintf(file, "%s %d\n", name, gpu); fclose(file); }
    if (sleep_ms) usleep(sleep_ms * 1000);
    if (gpu >= 0) {
        if (gpu >= GPUS || !gpus[gpu].there) return 6;
        if (gpus[gpu].crash) abort();
        if (gpus[gpu].state) return gpus[gpu].state;
    }
    return answer;
}

#define ID(h) ((int)(long)(h) - 1)
#define G(h) (&gpus[ID(h)])
#define GET(symbol, short, type, expression) \
    ret symbol(void *h, type *out) { ret r = enter(short, ID(h)); if (!r) *out = (expression); return r; }

ret nvmlInitWithFlags(unsigned flags) { (void)flags; ret r = enter("InitWithFlags", -1); return r ? r : init_code; }
ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ret nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(ret code) {
    static char text[40]; snprintf(text, sizeof text, "fake error %d", code); return text;
}
ret nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ret r = enter("SystemGetDriverVersion", -1); snprintf(out, size, "%s", driver); return r;
}
ret nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 12080; return enter("SystemGetCudaDriverVersion_v2", -1); }
ret nvmlDeviceGetCount_v2(unsigned *out) { ret r = enter("Count_v2", -1); *out = count; return r; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    ret r = enter("HandleByIndex_v2", -1);
    if (r) return r;
    if ((int)index >= count) return 2;
    *out = (void *)(long)(order[index] + 1);
    return gpus[order[index]].state;
}
ret nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    int n = -1; ret r = enter("HandleByUUID", -1);
    if (r) return r;
    if (sscanf(uuid, "GPU-fa4e0000-0000-4000-8000-%d", &n) != 1 || n < 0 || n >= GPUS || !gpus[n].there) return 6;
    *out = (void *)(long)(n + 1);
    return gpus[n].state;
}
ret nvmlDeviceGetUUID(void *h, char *out, unsigned size) {
    ret r = enter("UUID", ID(h)); snprintf(out, size, "GPU-fa4e0000-0000-4000-8000-%012d", ID(h)); return r;
}
ret nvmlDeviceGetName(void *h, char *out, unsigned size) {
    ret r = enter("Name", ID(h)); snprintf(out, size, "%s", G(h)->name); return r;
}
ret nvmlDeviceGetVbiosVersion(void *h, char *out, unsigned size) {
    ret r = enter("VbiosVersion", ID(h)); snprintf(out, size, "92.00.45.00.%02d", ID(h)); return r;
}
ret nvmlDeviceGetPciInfo_v3(void *h, pci_t *out) {
    ret r = enter("PciInfo_v3", ID(h));
    if (r) return r;
    memset(out, 0, sizeof *out);
    out->bus = ID(h) + 1; out->id = G(h)->id;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", ID(h) + 1);
    return 0;
}
ret nvmlDeviceGetMemoryInfo_v2(void *h, memory_t *out) {
    ret r = enter("MemoryInfo_v2", ID(h));
    if (r) return r;
    out->total = (unsigned long long)G(h)->mib << 20; out->used = (unsigned long long)G(h)->mem << 20;
    out->reserved = 0; out->free = out->total - out->used;
    return 0;
}
ret nvmlDeviceGetUtilizationRates(void *h, unsigned out[2]) {
    ret r = enter("UtilizationRates", ID(h)); if (!r) { out[0] = G(h)->util; out[1] = 0; } return r;
}
ret nvmlDeviceGetTemperature(void *h, int sensor, unsigned *out) {
    (void)sensor; ret r = enter("Temperature", ID(h)); if (!r) *out = G(h)->temp; return r;
}
ret nvmlDeviceGetClockInfo(void *h, int kind, unsigned *out) {
    (void)kind; ret r = enter("ClockInfo", ID(h)); if (!r) *out = G(h)->clock; return r;
}
ret nvmlDeviceGetFanSpeed_v2(void *h, unsigned fan, unsigned *out) {
    (void)fan; ret r = enter("FanSpeed_v2", ID(h)); if (!r) *out = G(h)->fan; return r;
}
ret nvmlDeviceGetTotalEccErrors(void *h, int kind, int counter, unsigned long long *out) {
    (void)counter; ret r = enter("TotalEccErrors", ID(h)); if (!r) *out = kind ? 0 : G(h)->ecc; return r;
}
ret nvmlDeviceGetEccMode(void *h, unsigned *now, unsigned *next) {
    ret r = enter("EccMode", ID(h)); if (!r) *now = *next = 1; return r;
}
ret nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *next) {
    ret r = enter("MigMode", ID(h)); if (!r) *now = *next = 0; return r;
}
ret nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    ret r = enter("CudaComputeCapability", ID(h)); if (!r) { *major = G(h)->cc_major; *minor = G(h)->cc_minor; } return r;
}
ret nvmlDeviceGetRemappedRows(void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ret r = enter("RemappedRows", ID(h)); int *rows = G(h)->rows;
    if (!r) { *corrected = rows[0]; *uncorrected = rows[1]; *pending = rows[2]; *failed = rows[3]; }
    return r;
}
GET(nvmlDeviceGetPowerUsage, "PowerUsage", unsigned, G(h)->power)
GET(nvmlDeviceGetEnforcedPowerLimit, "EnforcedPowerLimit", unsigned, 400000)
GET(nvmlDeviceGetPowerManagementDefaultLimit, "PowerManagementDefaultLimit", unsigned, 400000)
GET(nvmlDeviceGetTotalEnergyConsumption, "TotalEnergyConsumption", unsigned long long, G(h)->energy)
GET(nvmlDeviceGetCurrPcieLinkGeneration, "CurrPcieLinkGeneration", unsigned, G(h)->gen)
GET(nvmlDeviceGetCurrPcieLinkWidth, "CurrPcieLinkWidth", unsigned, G(h)->width)
GET(nvmlDeviceGetMaxPcieLinkWidth, "MaxPcieLinkWidth", unsigned, 16)
GET(nvmlDeviceGetPcieReplayCounter, "PcieReplayCounter", unsigned, G(h)->replays)
GET(nvmlDeviceGetCurrentClocksEventReasons, "CurrentClocksEventReasons", unsigned long long, 1)
GET(nvmlDeviceGetComputeMode, "ComputeMode", int, 0)
GET(nvmlDeviceGetPersistenceMode, "PersistenceMode", int, 1)
GET(nvmlDeviceGetSupportedEventTypes, "SupportedEventTypes", unsigned long long, 8)

ret nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process_t *out) {
    ret r = enter("ComputeRunningProcesses_v3", ID(h));
    if (r) return r;
    if (*n < (unsigned)G(h)->nproc) { *n = G(h)->nproc; return 7; }
    *n = G(h)->nproc;
    if (out) memcpy(out, G(h)->proc, *n * sizeof *out);
    return 0;
}
ret nvmlDeviceGetFieldValues(void *h, int n, field_t *out) {
    ret r = enter("FieldValues", ID(h));
    for (int i = 0; i < n && !r; i++) {
        out[i].type = 1; out[i].code = 3;
        if (out[i].field == 230) { out[i].code = 0; out[i].value.u = G(h)->action; }
    }
    return r;
}
ret nvmlEventSetCreate(void **out) { *out = (void *)1; return enter("EventSetCreate", -1); }
ret nvmlEventSetFree(void *set) { (void)set; return 0; }
ret nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set) {
    (void)types; (void)set; return enter("RegisterEvents", ID(h));
}
ret nvmlEventSetWait_v2(void *set, event_t *out, unsigned timeout_ms) {
    /* How long it sleeps between two looks: a real driver wakes nobody while nothing happens. */
    const char *step = getenv("FAKE_NVML_STEP_MS");
    unsigned step_ms = step ? atoi(step) : 20;
    (void)set;
    for (unsigned waited = 0;; waited += step_ms) {
        ret r = enter("EventSetWait_v2", -1);
        if (r) return r;
        if (told < nxids) {
            memset(out, 0, sizeof *out);
            out->device = (void *)(long)(xids[told].gpu + 1); out->type = 8; out->data = xids[told++].xid;
            return 0;
        }
        if (waited >= timeout_ms) return 10;
        usleep(step_ms * 1000);
    }
}
