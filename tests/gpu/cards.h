/* The cards that the stand-in can be, chosen by the variable REHEARSED_GPU; sizes as NVIDIA publishes them. */
#include <stdlib.h>
#include <string.h>

struct card {
    const char *key, *name;
    int major, minor, processors, threads_per_processor;
    int shared_per_processor, shared_per_block;
    unsigned long long memory, l2;
    int bus_width;
};

static const struct card CARDS[] = {
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 2048, 233472, 232448, 80ull << 30, 50 << 20, 5120},
    {"h200", "NVIDIA H200", 9, 0, 132, 2048, 233472, 232448, 141ull << 30, 50 << 20, 6144},
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 2048, 167936, 166912, 80ull << 30, 40 << 20, 5120},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, 1536, 102400, 101376, 24ull << 30, 72 << 20, 384},
    {"v100", "Tesla V100-SXM2-16GB", 7, 0, 80, 2048, 98304, 98304, 16ull << 30, 6 << 20, 4096},
    {"t4", "Tesla T4", 7, 5, 40, 1024, 65536, 65536, 15ull << 30, 4 << 20, 256},
};

static const struct card *card(void) {
    const char *key = getenv("REHEARSED_GPU");
    for (size_t i = 0; key && i < sizeof CARDS / sizeof *CARDS; i++)
        if (!strcmp(key, CARDS[i].key)) return &CARDS[i];
    return &CARDS[0];
}

static int devices(void) {
    const char *count = getenv("REHEARSED_GPUS");
    return count ? atoi(count) : 1;
}

/* Attributes have the same numbers in the driver's and in the runtime's interface. */
static int attribute(int number) {
    switch (number) {
        case 1: return 1024;                           /* threads of a block */
        case 8: return 49152;                          /* shared memory of a block */
        case 10: return 32;                            /* threads of a warp */
        case 12: case 82: return 65536;                /* registers of a block, of a processor */
        case 16: return card()->processors;
        case 39: return card()->threads_per_processor;
        case 75: return card()->major;
        case 76: return card()->minor;
        case 81: return card()->shared_per_processor;
        case 97: return card()->shared_per_block;      /* if asked for */
        default: return 0;
    }
}
