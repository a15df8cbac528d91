/* A CUDA runtime that answers as a card would and computes nothing: memory is host memory, a kernel's launch returns at
   once. torch's CUDA build, preloaded with it, sees the card of cards.h; under FakeTensorMode each operator then checks
   shapes, dtypes and devices as the real one does. Built by build.sh. */
#include <stddef.h>
#include <stdio.h>
#include "cards.h"
#include "driver_types.h"

#define OK return 0
#define CALL(name, ...) int name(__VA_ARGS__)

static _Thread_local int current;
static size_t handles = 1;

CALL(cudaGetDeviceCount, int *n) { *n = devices(); OK; }
CALL(cudaGetDevice, int *device) { *device = current; OK; }
CALL(cudaSetDevice, int device) { current = device; OK; }
CALL(cudaDriverGetVersion, int *version) { *version = 13000; OK; }
CALL(cudaRuntimeGetVersion, int *version) { *version = 13000; OK; }
CALL(cudaDeviceGetAttribute, int *value, int number, int device) { *value = attribute(number); OK; }
CALL(cudaDeviceCanAccessPeer, int *can, int device, int peer) { *can = device != peer; OK; }
CALL(cudaDeviceGetStreamPriorityRange, int *least, int *greatest) { *least = 0; *greatest = -5; OK; }
CALL(cudaMemGetInfo, size_t *unused, size_t *total) { *total = card()->memory; *unused = *total - (1ull << 30); OK; }
const char *cudaGetErrorName(int error) { return "no error"; }
const char *cudaGetErrorString(int error) { return "no error"; }

CALL(cudaGetDeviceProperties, struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, card()->name);
    p->totalGlobalMem = card()->memory;
    p->major = card()->major;
    p->minor = card()->minor;
    p->multiProcessorCount = card()->processors;
    p->maxThreadsPerMultiProcessor = card()->threads_per_processor;
    p->sharedMemPerMultiprocessor = card()->shared_per_processor;
    p->sharedMemPerBlockOptin = card()->shared_per_block;
    p->sharedMemPerBlock = 49152;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->l2CacheSize = card()->l2;
    p->memoryBusWidth = card()->bus_width;
    p->pciBusID = device;
    OK;
}

CALL(cudaMalloc, void **place, size_t bytes) { *place = malloc(bytes); return *place ? 0 : 2; }
CALL(cudaHostAlloc, void **place, size_t bytes, unsigned flags) { return cudaMalloc(place, bytes); }
CALL(cudaFree, void *place) { free(place); OK; }
CALL(cudaFreeHost, void *place) { free(place); OK; }
CALL(cudaMemcpy, void *to, const void *from, size_t bytes, int kind) { memcpy(to, from, bytes); OK; }
CALL(cudaMemcpyAsync, void *to, const void *from, size_t bytes, int kind, void *stream) { memcpy(to, from, bytes); OK; }
CALL(cudaMemset, void *place, int value, size_t bytes) { memset(place, value, bytes); OK; }
CALL(cudaMemsetAsync, void *place, int value, size_t bytes, void *stream) { memset(place, value, bytes); OK; }
CALL(cudaPointerGetAttributes, struct cudaPointerAttributes *a, const void *place) {
    memset(a, 0, sizeof *a);
    a->hostPointer = (void *)place;
    OK;
}

#define MAKES_A_HANDLE(name) CALL(name, size_t *handle) { *handle = ++handles; OK; }
MAKES_A_HANDLE(cudaStreamCreate)
MAKES_A_HANDLE(cudaStreamCreateWithFlags)
MAKES_A_HANDLE(cudaStreamCreateWithPriority)
MAKES_A_HANDLE(cudaEventCreate)
MAKES_A_HANDLE(cudaEventCreateWithFlags)
CALL(cudaStreamIsCapturing, void *stream, int *status) { *status = 0; OK; }
CALL(cudaEventElapsedTime, float *milliseconds, void *start, void *end) { *milliseconds = 1; OK; }

/* Known to have nothing to do here. */
#define DOES_NOTHING(name) CALL(name, void) { OK; }
DOES_NOTHING(cudaDeviceSynchronize)
DOES_NOTHING(cudaGetLastError)
DOES_NOTHING(cudaPeekAtLastError)
DOES_NOTHING(cudaEventRecord)
DOES_NOTHING(cudaEventRecordWithFlags)
DOES_NOTHING(cudaEventQuery)
DOES_NOTHING(cudaEventSynchronize)
DOES_NOTHING(cudaEventDestroy)
DOES_NOTHING(cudaStreamQuery)
DOES_NOTHING(cudaStreamSynchronize)
DOES_NOTHING(cudaStreamDestroy)
DOES_NOTHING(cudaStreamWaitEvent)
DOES_NOTHING(cudaThreadExchangeStreamCaptureMode)
DOES_NOTHING(cudaHostRegister)
DOES_NOTHING(cudaHostUnregister)
DOES_NOTHING(cudaLaunchKernel)
DOES_NOTHING(cudaLaunchKernelExC)
DOES_NOTHING(cudaFuncSetAttribute)
DOES_NOTHING(cudaDeviceEnablePeerAccess)
DOES_NOTHING(cudaStreamGetCaptureInfo)

/* Not expected: the name on stderr says what a rehearsal needs next. */
#define UNEXPECTED(name) CALL(name, void) { fprintf(stderr, "stand-in for CUDA: %s was called\n", #name); OK; }
UNEXPECTED(cudaDeviceGetDefaultMemPool)
UNEXPECTED(cudaDeviceGetPCIBusId)
UNEXPECTED(cudaFreeAsync)
UNEXPECTED(cudaFuncGetAttributes)
UNEXPECTED(cudaGetDriverEntryPointByVersion)
UNEXPECTED(cudaGetSymbolAddress)
UNEXPECTED(cudaGraphAddNode)
UNEXPECTED(cudaGraphDestroy)
UNEXPECTED(cudaGraphExecDestroy)
UNEXPECTED(cudaGraphGetNodes)
UNEXPECTED(cudaGraphInstantiateWithFlags)
UNEXPECTED(cudaGraphLaunch)
UNEXPECTED(cudaIpcGetEventHandle)
UNEXPECTED(cudaIpcGetMemHandle)
UNEXPECTED(cudaIpcOpenEventHandle)
UNEXPECTED(cudaIpcOpenMemHandle)
UNEXPECTED(cudaIpcCloseMemHandle)
UNEXPECTED(cudaKernelSetAttributeForDevice)
UNEXPECTED(cudaLaunchHostFunc)
UNEXPECTED(cudaLibraryGetKernel)
UNEXPECTED(cudaLibraryLoadData)
UNEXPECTED(cudaLibraryUnload)
UNEXPECTED(cudaMallocAsync)
UNEXPECTED(cudaMemPoolGetAttribute)
UNEXPECTED(cudaMemPoolSetAccess)
UNEXPECTED(cudaMemPoolSetAttribute)
UNEXPECTED(cudaMemPoolTrimTo)
UNEXPECTED(cudaMemcpyPeerAsync)
UNEXPECTED(cudaMemcpyToSymbol)
UNEXPECTED(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
UNEXPECTED(cudaProfilerStart)
UNEXPECTED(cudaProfilerStop)
UNEXPECTED(cudaStreamAddCallback)
UNEXPECTED(cudaStreamBeginCapture)
UNEXPECTED(cudaStreamEndCapture)
UNEXPECTED(cudaStreamGetPriority)
UNEXPECTED(cudaStreamUpdateCaptureDependencies)
