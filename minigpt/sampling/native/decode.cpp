// The GPT of gpt.py for one new token per row, in one call: what 60 to 250 small torch operations would do.
//
// decoder.py calls it; minigpt/model/gpt.py is its readable twin, and the tests hold the two equal.
// Weights are fp32, bf16 or int8 (one scale per output); every sum and every activation is fp32.
//
// Writing a token is reading all weights once, so the loops are laid out for memory: weights are walked in the order
// in which they lie, each is used for all rows while it is in a register, and the next ones are asked for early
// (hardware prefetchers stop at the pages' ends, and a layer is a few pages per output).

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

constexpr int LANES = 16, STEP = 64, AHEAD = 8192;  // floats in a vector; inputs are padded to STEP; prefetched bytes
typedef float vec __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
struct bf16 { uint16_t bits; };

inline vec load(const float* p) { vec v; std::memcpy(&v, p, sizeof v); return v; }
inline vec load(const int8_t* p) {
#ifdef __AVX512F__  // gcc makes many instructions of the conversion below
    __m512 v = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    vec w; std::memcpy(&w, &v, sizeof w); return w;
#else
    typedef int8_t bytes __attribute__((vector_size(16)));
    typedef int16_t shorts __attribute__((vector_size(32)));
    bytes b; std::memcpy(&b, p, sizeof b);
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(b, shorts), ints), vec);
#endif
}
inline vec load(const bf16* p) {  // a bf16 is the upper half of an fp32
    typedef uint16_t halves __attribute__((vector_size(32)));
    typedef uint32_t words __attribute__((vector_size(64)));
    halves h; std::memcpy(&h, p, sizeof h);
    words w = __builtin_convertvector(h, words) << 16;
    vec v; std::memcpy(&v, &w, sizeof v); return v;
}
inline void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }
inline float value(float x) { return x; }
inline float value(int8_t x) { return x; }
inline float value(bf16 x) { uint32_t w = uint32_t(x.bits) << 16; float f; std::memcpy(&f, &w, 4); return f; }
inline void put(float* p, float x) { *p = x; }
inline void put(bf16* p, float x) {  // rounded to the nearest, ties to even; NaN stays one
    uint32_t w; std::memcpy(&w, &x, 4);
    p->bits = x != x ? 0x7fc0 : uint16_t((w + 0x7fff + ((w >> 16) & 1)) >> 16);
}
inline float sum(vec v) {
    typedef float eight __attribute__((vector_size(32)));
    typedef float four __attribute__((vector_size(16)));
    eight e[2]; std::memcpy(e, &v, sizeof v);
    e[0] += e[1];
    four f[2]; std::memcpy(f, e, sizeof f);
    f[0] += f[1];
    return (f[0][0] + f[0][1]) + (f[0][2] + f[0][3]);
}

// e^x to 2 units in the last place: 2^n times a polynomial in the rest.
inline vec exp(vec x) {
    x = x < -87.0f ? vec{} - 87.0f : x;
    x = x > 88.0f ? vec{} + 88.0f : x;
    vec magic = vec{} + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
    vec n = x * 1.44269504f + magic;
    n -= magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = vec{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ints power = (__builtin_convertvector(n, ints) + 127) << 23;
    vec scale; std::memcpy(&scale, &power, sizeof scale);
    return p * scale;
}

enum Activation { GELU_TANH, GELU, RELU_SQUARED, SWIGLU };
enum NormKind { NONE, LAYERNORM, RMSNORM };

void activate(float* x, const float* gate, int n, int kind) {  // n is a multiple of LANES
    if (kind == SWIGLU) {  // x times gate / (1 + e^-gate)
        for (int i = 0; i < n; i += LANES) {
            vec g = load(gate + i);
            store(x + i, load(x + i) * g / (exp(-g) + 1.0f));
        }
        return;
    }
    if (kind == GELU) {
        for (int i = 0; i < n; i++) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
        return;
    }
    if (kind == RELU_SQUARED) {
        for (int i = 0; i < n; i++) x[i] = x[i] < 0.0f ? 0.0f : x[i] * x[i];
        return;
    }
    for (int i = 0; i < n; i += LANES) {
        vec v = load(x + i);
        vec u = 1.5957691216f * (v + 0.044715f * v * v * v);  // 2 sqrt(2 / pi) (...)
        store(x + i, v - v / (exp(u) + 1.0f));                // v (1 + tanh(u / 2)) / 2
    }
}

// R outputs for B rows at once: weights w, w + stride, ... against inputs x, x + stride, ... What is loaded is used
// B or R times. Every output is summed in the same order whatever R and B are: a row does not know its neighbours.
template <int R, int B, class W>
inline void dot(const W* w, const float* x, int stride, float out[R][B]) {
    vec sums[R][B] = {};
    for (int k = 0; k < stride; k += STEP) {
        for (int r = 0; r < R; r++) {
            const char* next = reinterpret_cast<const char*>(w + size_t(r) * stride + k) + AHEAD;
            for (size_t byte = 0; byte < STEP * sizeof(W); byte += 64) __builtin_prefetch(next + byte);
        }
#pragma GCC unroll 4
        for (int j = 0; j < STEP; j += LANES) {
            vec inputs[B];
#pragma GCC unroll 4
            for (int b = 0; b < B; b++) inputs[b] = load(x + size_t(b) * stride + k + j);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                vec weights = load(w + size_t(r) * stride + k + j);
#pragma GCC unroll 4
                for (int b = 0; b < B; b++) sums[r][b] += weights * inputs[b];
            }
        }
    }
    for (int r = 0; r < R; r++) {
        for (int b = 0; b < B; b++) out[r][b] = sum(sums[r][b]);
    }
}

struct Linear { const void* weight; const float *scale, *bias; };  // weight (N, K padded); scale (N,) if int8, bias or null
struct Norm { const float *weight, *bias; };

struct Layer { Norm norm_1; Linear qkv, out; Norm norm_2; Linear up, down, gate; const float *q_weight, *k_weight; };
static_assert(sizeof(Layer) == 21 * sizeof(void*), "decoder.py packs a layer as 21 pointers");

struct Sizes {
    int64_t layers, heads, kv_heads, head_dim, width, hidden, vocabulary, block, rows;  // rows: of the cache
    int64_t weights, cache, activation, norm, qk_norm, threads;
    double eps;
};

struct Share {  // of the work: this thread's, and how to wait for the others
    int index, of;
    int from(int n) const { return int(int64_t(n) * index / of); }
    int to(int n) const { return int(int64_t(n) * (index + 1) / of); }
    void wait() const {
#ifdef _OPENMP
#pragma omp barrier
#endif
    }
};

inline int padded(int n) { return (n + STEP - 1) / STEP * STEP; }

// R outputs from n on of y = x w^T + bias for `rows` rows, B at a time; added to y instead if ADD.
template <bool ADD, int R, int B, class W>
void outputs(const Linear& linear, int n, const float* x, int stride, float* y, int stride_y, int rows) {
    float out[R][B];
    for (int b = 0; b < rows; b += B) {
        dot<R, B>(static_cast<const W*>(linear.weight) + size_t(n) * stride, x + size_t(b) * stride, stride, out);
        for (int r = 0; r < R; r++) {
            const float scale = linear.scale ? linear.scale[n + r] : 1.0f, bias = linear.bias ? linear.bias[n + r] : 0.0f;
            for (int i = 0; i < B; i++) {
                float* at = y + size_t(b + i) * stride_y + n + r;
                *at = std::fma(out[r][i], scale, bias) + (ADD ? *at : 0.0f);  // or compilers do it for some R and B only
            }
        }
    }
}

// All of this thread's outputs, for B rows.
template <bool ADD, class W>
void apply(const Linear& linear, const float* x, int K, float* y, int stride_y, int N, int B, Share share) {
    const int stride = padded(K), fours = B / 4 * 4, end = share.to(N);
    const float* rest = x + size_t(fours) * stride;
    float* y_rest = y + size_t(fours) * stride_y;
    for (int n = share.from(N); n < end;) {
        if (n + 4 <= end) {
            outputs<ADD, 4, 4, W>(linear, n, x, stride, y, stride_y, fours);
            outputs<ADD, 4, 1, W>(linear, n, rest, stride, y_rest, stride_y, B - fours);
            n += 4;
        } else {
            outputs<ADD, 1, 1, W>(linear, n, x, stride, y, stride_y, B);
            n += 1;
        }
    }
}

void normalise(const Norm& norm, int64_t kind, const float* x, float* y, int C, int B, double eps) {
    const int stride = padded(C);
    for (int b = 0; b < B; b++, x += stride, y += stride) {
        vec total = {}, squares = {};  // the padding is 0: it adds nothing to the sum
        for (int i = 0; i < stride; i += LANES) total += load(x + i);
        const float mean = kind == RMSNORM ? 0.0f : sum(total) / C;
        for (int i = 0; i < C / LANES * LANES; i += LANES) { vec d = load(x + i) - mean; squares += d * d; }
        float square = sum(squares);
        for (int i = C / LANES * LANES; i < C; i++) square += (x[i] - mean) * (x[i] - mean);
        const float factor = float(1.0 / std::sqrt(square / C + eps));
        for (int i = 0; i < C; i++) y[i] = (x[i] - mean) * factor * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
    }
}

// A query or key, in place: its layernorm without weights, or its rmsnorm with them.
void normalise_head(float* x, int64_t kind, const float* weight, int D, double eps) {
    if (kind == NONE) return;
    float total = 0, square = 0;
    for (int d = 0; d < D; d++) total += x[d];
    const float mean = kind == RMSNORM ? 0.0f : total / D;
    for (int d = 0; d < D; d++) square += (x[d] - mean) * (x[d] - mean);
    const float factor = 1.0f / std::sqrt(square / D + float(eps));
    for (int d = 0; d < D; d++) x[d] = (x[d] - mean) * factor * (weight ? weight[d] : 1.0f);
}

// A query or key of rotary attention, in place. `angles` are cosines, then sines; null turns nothing.
void turn(float* x, const float* angles, int D) {
    if (!angles) return;
    for (int d = 0; d < D / 2; d++) {
        const float first = x[d], second = x[d + D / 2];
        x[d] = first * angles[d] - second * angles[d + D / 2];
        x[d + D / 2] = first * angles[d + D / 2] + second * angles[d];
    }
}

// One head of queries of one row: attend to n keys.
template <class S>
void attend(const float* q, const S* keys, const S* values, int n, int D, float* scores, float* out) {
    const int whole = D / LANES * LANES, n_padded = (n + LANES - 1) / LANES * LANES;
    const float shrink = 1.0f / std::sqrt(float(D));
    float top = -INFINITY;
    for (int s = 0; s < n; s++) {
        const S* key = keys + size_t(s) * D;
        __builtin_prefetch(reinterpret_cast<const char*>(key) + 2048);
        vec products = {};
        for (int d = 0; d < whole; d += LANES) products += load(q + d) * load(key + d);
        float score = sum(products);
        for (int d = whole; d < D; d++) score += q[d] * value(key[d]);
        scores[s] = score * shrink;
        top = scores[s] > top ? scores[s] : top;
    }
    for (int s = n; s < n_padded; s++) scores[s] = top - 1000.0f;  // e^-87 = 1e-38: nothing
    vec total = {};
    for (int s = 0; s < n_padded; s += LANES) { vec e = exp(load(scores + s) - top); store(scores + s, e); total += e; }
    const float rest = 1.0f / sum(total);
    for (int d = 0; d < D; d++) out[d] = 0;
    for (int s = 0; s < n; s++) {
        const S* row = values + size_t(s) * D;
        __builtin_prefetch(reinterpret_cast<const char*>(row) + 2048);
        const float weight = scores[s] * rest;
        for (int d = 0; d < whole; d += LANES) store(out + d, load(out + d) + weight * load(row + d));
        for (int d = whole; d < D; d++) out[d] += weight * value(row[d]);
    }
}

// Either positions are added to the embeddings (block, C), or angles turn queries and keys (block, D); the other is null.
struct Model {
    const void* token; const float *token_scale, *position, *angles;
    Norm final_norm; Linear output; const Layer* layers;
};

template <class W, class S>
void step(const Sizes& z, const Model& model, const int64_t* tokens, const int64_t* lengths, int B, S* keys, S* values,
          float* logits, float* x, float* qkv, float* mixed, float* wide, float* gate, Share share) {
    const int C = int(z.width), Cp = padded(C), F = int(z.hidden), Fp = padded(F), V = int(z.vocabulary);
    const int H = int(z.heads), G = int(z.kv_heads), D = int(z.head_dim), HD = H * D, HDp = padded(HD), QKV = (H + 2 * G) * D;
    thread_local std::vector<float> h, scores;
    h.assign(size_t(B) * Cp, 0.0f);
    scores.resize(z.block + LANES);
    for (int b = share.from(B); b < share.to(B); b++) {
        const W* token = static_cast<const W*>(model.token) + size_t(tokens[b]) * Cp;
        const float scale = model.token_scale ? model.token_scale[tokens[b]] : 1.0f;
        for (int i = 0; i < C; i++) {
            x[size_t(b) * Cp + i] = value(token[i]) * scale + (model.position ? model.position[lengths[b] * C + i] : 0.0f);
        }
    }
    share.wait();
    for (int l = 0; l < z.layers; l++) {
        const Layer& layer = model.layers[l];
        normalise(layer.norm_1, z.norm, x, h.data(), C, B, z.eps);
        apply<false, W>(layer.qkv, h.data(), C, qkv, QKV, QKV, B, share);
        share.wait();
        for (int i = share.from(B * G); i < share.to(B * G); i++) {  // a head of keys and values, and its queries
            const int b = i / G, g = i % G;
            float *q = qkv + size_t(b) * QKV + g * (H / G) * D, *k = qkv + size_t(b) * QKV + HD + g * D, *v = k + G * D;
            const float* angles = model.angles ? model.angles + lengths[b] * D : nullptr;
            const size_t at = ((size_t(l) * z.rows + b) * G + g) * z.block * D, end = at + lengths[b] * D;
            normalise_head(k, z.qk_norm, layer.k_weight, D, z.eps);
            turn(k, angles, D);
            for (int d = 0; d < D; d++) { put(keys + end + d, k[d]); put(values + end + d, v[d]); }
            for (int head = 0; head < H / G; head++, q += D) {
                normalise_head(q, z.qk_norm, layer.q_weight, D, z.eps);
                turn(q, angles, D);
                float* out = mixed + size_t(b) * HDp + (g * (H / G) + head) * D;
                attend(q, keys + at, values + at, int(lengths[b]) + 1, D, scores.data(), out);
            }
        }
        share.wait();
        apply<true, W>(layer.out, mixed, HD, x, Cp, C, B, share);
        share.wait();
        normalise(layer.norm_2, z.norm, x, h.data(), C, B, z.eps);
        apply<false, W>(layer.up, h.data(), C, wide, Fp, F, B, share);
        if (layer.gate.weight) apply<false, W>(layer.gate, h.data(), C, gate, Fp, F, B, share);
        share.wait();
        const int blocks = Fp / LANES, first = share.from(blocks) * LANES, n = share.to(blocks) * LANES - first;
        for (int b = 0; b < B; b++) activate(wide + size_t(b) * Fp + first, gate + size_t(b) * Fp + first, n, int(z.activation));
        share.wait();
        apply<true, W>(layer.down, wide, F, x, Cp, C, B, share);
        share.wait();
    }
    normalise(model.final_norm, z.norm, x, h.data(), C, B, z.eps);
    apply<false, W>(model.output, h.data(), C, logits, V, V, B, share);
}

}  // namespace

// Tokens (B,) at positions `lengths` (B,) -> logits (B, V). The first B rows of keys and values (L, rows, G, block, D)
// get one more column. Returns 0, with nothing done, if a token is none.
extern "C" int minigpt_step(const Sizes* z, const Model* model, const int64_t* tokens, const int64_t* lengths,
                            void* keys, void* values, float* logits, int64_t B) {
    for (int b = 0; b < B; b++) if (tokens[b] < 0 || tokens[b] >= z->vocabulary) return 0;
    const int C = padded(int(z->width)), HD = padded(int(z->heads * z->head_dim)), F = padded(int(z->hidden)), rows = int(B);
    thread_local std::vector<float> scratch;
    scratch.assign(B * (C + HD + 2 * F + (z->heads + 2 * z->kv_heads) * z->head_dim) + LANES, 0.0f);
    float* x = scratch.data();  // at the beginning of a cache line
    x += (64 - reinterpret_cast<uintptr_t>(x) % 64) % 64 / sizeof(float);
    float *mixed = x + B * C, *wide = mixed + B * HD, *gate = wide + B * F, *qkv = gate + B * F;
    auto run = [&](Share share) {
        auto with = [&](auto weight, auto cache) {
            using W = decltype(weight); using S = decltype(cache);
            step<W, S>(*z, *model, tokens, lengths, rows, static_cast<S*>(keys), static_cast<S*>(values), logits, x, qkv, mixed, wide, gate, share);
        };
        auto with_weights = [&](auto weight) { z->cache == 0 ? with(weight, float{}) : with(weight, bf16{}); };
        if (z->weights == 0) with_weights(float{});
        else if (z->weights == 1) with_weights(bf16{});
        else with_weights(int8_t{});
    };
#ifdef _OPENMP
#pragma omp parallel num_threads(int(z->threads))
    run({omp_get_thread_num(), omp_get_num_threads()});
#else
    run({0, 1});
#endif
    return 1;
}
