/*
 * A stand-in for libcuda.so.1, for tests of the real calls in a real process. Forms are those of NVIDIA's public
 * cuda.h. Two devices that can reach each other; CUDA_STUB_INIT is the return code of cuInit.
 * A context is never made: the library does not even have the functions for it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_READY = 802 };

static int initialised;

int cuInit(unsigned int flags) {
    (void)flags;
    const char *text = getenv("CUDA_STUB_INIT");
    int code = text ? atoi(text) : SUCCESS;
    initialised = code == SUCCESS;
    return code;
}

int cuDriverGetVersion(int *out) {
    *out = 13000;
    return SUCCESS;
}

int cuGetErrorName(int code, const char **out) {
    *out = code == NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
           : code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
           : code == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE"
           : code == NOT_READY     ? "CUDA_ERROR_SYSTEM_NOT_READY"
                                   : NULL;
    return *out ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetCount(int *out) {
    if (!initialised) return 3;
    *out = 2;
    return SUCCESS;
}

int cuDeviceGet(int *out, int ordinal) {
    if (ordinal < 0 || ordinal >= 2) return INVALID_DEVICE;
    *out = ordinal;
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *out, int size, int device) {
    snprintf(out, (size_t)size, "0000:%02X:00.0", 0x1a + device);
    return SUCCESS;
}

int cuDeviceGetUuid(unsigned char *out, int device) {
    for (int i = 0; i < 16; i++) out[i] = (unsigned char)i;
    out[15] = (unsigned char)(0xf0 + device);
    return SUCCESS;
}

int cuDeviceGetName(char *out, int size, int device) {
    (void)device;
    snprintf(out, (size_t)size, "NVIDIA H100 80GB HBM3");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *out, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case 18: /* INTEGRATED */
    case 20: /* COMPUTE_MODE */
        *out = 0;
        return SUCCESS;
    case 116: /* GPU_DIRECT_RDMA_SUPPORTED */
    case 117: /* GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS */
    case 124: /* DMA_BUF_SUPPORTED */
        *out = 1;
        return SUCCESS;
    default: /* a driver that does not know the newer ones */
        return INVALID_VALUE;
    }
}

int cuDeviceCanAccessPeer(int *out, int device, int peer) {
    if (device == peer) return INVALID_DEVICE;
    *out = 1;
    return SUCCESS;
}
