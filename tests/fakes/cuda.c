/* A libcuda.so.1 without a GPU, for tests: one device, whose memory is the machine's own.

   CUDA_VISIBLE_DEVICES names its UUID. FAKE_CUDA_MIB is its memory (128). FAKE_CUDA_BAD names a UUID whose memory loses
   a bit of whatever is filled into it. FAKE_CUDA_LOG names a file that gets a line "fill WORD BYTES" for each fill. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int ret;
typedef unsigned long long ptr;
static size_t total, used;
#define LIVE 4096
static struct { ptr address; size_t size; } live[LIVE];

static int is_bad(void) {
    const char *bad = getenv("FAKE_CUDA_BAD"), *own = getenv("CUDA_VISIBLE_DEVICES");
    return bad && own && !strcmp(bad, own);
}

ret cuInit(unsigned flags) {
    const char *mib = getenv("FAKE_CUDA_MIB");
    total = (size_t)(mib ? atol(mib) : 128) << 20;
    return flags;
}

ret cuDeviceGetCount(int *count) { *count = 1; return 0; }
ret cuDeviceGet(int *device, int index) { *device = index; return index != 0; }

ret cuDeviceGetUuid_v2(unsigned char *out, int device) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0;
    if (!text || strncmp(text, "GPU-", 4)) return 100;
    for (text += 4; *text && n < 16; text++) {
        unsigned byte;
        if (*text == '-') continue;
        if (sscanf(text, "%2x", &byte) != 1) return 1;
        out[n++] = (unsigned char)byte;
        text++;
    }
    return device != 0 || n != 16;
}

ret cuDevicePrimaryCtxRetain(void **context, int device) { *context = &total; return device; }
ret cuDevicePrimaryCtxRelease_v2(int device) { return device; }
ret cuCtxSetCurrent(void *context) { return context == 0; }
ret cuCtxSynchronize(void) { return 0; }
ret cuMemGetInfo_v2(size_t *free, size_t *all) { *free = total - used; *all = total; return 0; }

ret cuMemAlloc_v2(ptr *out, size_t size) {
    if (used + size > total) return 2;
    for (int i = 0; i < LIVE; i++)
        if (!live[i].address) {
            live[i].address = *out = (ptr)(size_t)malloc(size);
            live[i].size = size;
            used += size;
            return *out == 0;
        }
    return 2;
}

ret cuMemFree_v2(ptr address) {
    for (int i = 0; i < LIVE; i++)
        if (live[i].address == address) {
            used -= live[i].size;
            free((void *)(size_t)address);
            live[i].address = 0;
            return 0;
        }
    return 1;
}

ret cuMemAllocHost_v2(void **out, size_t size) { *out = malloc(size); return *out == 0; }
ret cuMemFreeHost(void *address) { free(address); return 0; }
ret cuMemcpyHtoD_v2(ptr to, const void *of, size_t size) { memcpy((void *)(size_t)to, of, size); return 0; }
ret cuMemcpyDtoH_v2(void *to, ptr of, size_t size) { memcpy(to, (void *)(size_t)of, size); return 0; }
ret cuMemcpyDtoD_v2(ptr to, ptr of, size_t size) { memcpy((void *)(size_t)to, (void *)(size_t)of, size); return 0; }

ret cuMemsetD32_v2(ptr address, unsigned word, size_t count) {
    unsigned *at = (unsigned *)(size_t)address;
    const char *log = getenv("FAKE_CUDA_LOG");
    for (size_t i = 0; i < count; i++) at[i] = word;
    if (is_bad()) at[count / 2] ^= 1u << 7;
    if (log) {
        FILE *file = fopen(log, "a");
        if (file) {
            fprintf(file, "fill %08x %zu\n", word, 4 * count);
            fclose(file);
        }
    }
    return 0;
}
