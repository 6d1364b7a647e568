// What Python and these kernels agree on. Plain C; `abi.py` says the same, and checks the sizes when it loads the library.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PHLOEM_BF16 = 0, PHLOEM_F32 = 1, PHLOEM_INT8 = 2, PHLOEM_INT4 = 3 };
enum { PHLOEM_FINE = 0, PHLOEM_NOT_A_NUMBER = 1, PHLOEM_NOTHING_LEGAL = 2 }; // faults, as draws.py has them

// A packed weight: see matmul.h for the layouts.
typedef struct {
    const void* weights;
    const uint16_t* scales;   // quantised kinds only
    const uint16_t* offsets;  // int4 only, may be null
    const float* bias;        // [blocks * 32], may be null
    int32_t kind;
    int32_t blocks;           // of 32 outputs
    int32_t outputs;          // at most blocks * 32
    int32_t inputs;
} PhloemLinear;

typedef struct {
    PhloemLinear qkv, out, gate_up, down;  // gate_up: blocks of gate and up alternate
    const float* input_norm;               // [hidden]
    const float* post_norm;                // [hidden]
    const float* q_norm;                   // [head_dim], may be null
    const float* k_norm;                   // [head_dim], may be null
    void* keys;                            // the layer's share of the pool: see attention.h
    void* values;
} PhloemLayer;

typedef struct {
    const PhloemLayer* layers;
    PhloemLinear head;        // also read as the embedding if `embedding` is null
    const void* embedding;    // bf16 or f32 [vocab][hidden], may be null
    const float* norm;        // [hidden]
    const float* frequencies; // [head_dim / 2] radians per position
    int32_t layer_count;
    int32_t dtype;            // of activations and KV: PHLOEM_BF16 or PHLOEM_F32
    int32_t hidden, inner, heads, kv_heads, head_dim, vocab;
    int32_t page_size, pages; // of the pool
    float epsilon;
} PhloemModel;

// Rows of a step; tokens lie row after row.
typedef struct {
    const int64_t* tokens;    // [token_count]
    const int64_t* positions; // [token_count]
    const int64_t* starts;    // [row_count]
    const int64_t* counts;    // [row_count]
    const int64_t* tables;    // [row_count][table_width] page numbers
    int32_t token_count, row_count, table_width;
} PhloemBatch;

// Draws of one token per row, and where they go. sampler.py says what the numbers mean. Entries and masks are sorted by row.
typedef struct {
    const float* logits;           // [][vocab], never changed
    const int64_t* at;             // [rows] numbers of logits; null = all, in order
    const float* temperature;      // [rows], as the six below
    const float* top_p;
    const float* min_p;
    const int64_t* top_k;
    const uint64_t* seeds;
    const int64_t* children;
    const int64_t* positions;
    const int64_t* penalised_rows; // [penalised], as the three below
    const int64_t* penalised_ids;
    const float* repetition;
    const float* subtract;
    const int64_t* biased_rows;    // [biased], as the two below
    const int64_t* biased_ids;
    const float* biases;
    const int64_t* masked_rows;    // [masked]
    const int32_t* masks;          // [masked][mask_words]
    int64_t* ids;                  // [rows] out: the token, or any that exists if the row has a fault
    float* best;                   // [rows] out: the largest edited logit, NaN if any is
    int8_t* faults;                // [rows] out
    int32_t rows, vocab, penalised, biased, masked, mask_words;
} PhloemDraws;

// Log-probabilities under raw logits of one token per row, and of the `top` most likely, which come first.
typedef struct {
    const float* logits;           // [][vocab]
    const int64_t* at;             // [rows] numbers of logits; null = all, in order
    const int64_t* targets;        // [rows]
    float* logprobs;               // [rows] out
    int64_t* top_ids;              // [rows][top] out
    float* top_logprobs;           // [rows][top] out
    int32_t rows, vocab, top;      // top: at most vocab
} PhloemScores;

typedef struct PhloemTeam PhloemTeam;

// Sizes of the six structs above, to find a library of another version.
void phloem_sizes(int32_t sizes[6]);
// What this library was compiled for: avx512bf16, avx512, avx2 or portable.
const char* phloem_level(void);

// `cores`: [core_count] where its threads may run, none = anywhere. Null if threads can't be started.
PhloemTeam* phloem_team_new(int32_t threads, int64_t spin_ns, const int32_t* cores, int32_t core_count);
void phloem_team_free(PhloemTeam* team);

// Each call below may be given a workspace of as many bytes as its companion says.

// Runs the stack: K and V into the pool, the normalised last hidden states to `hidden`, bf16 or f32 [token_count][hidden].
int64_t phloem_workspace(const PhloemModel* model, const PhloemTeam* team, const PhloemBatch* batch);
void phloem_forward(const PhloemModel* model, PhloemTeam* team, const PhloemBatch* batch, void* hidden, void* workspace);

// `out` f32 [rows][outputs] of `x` [rows][inputs]: the logits, with the head as the weight.
int64_t phloem_multiply_workspace(const PhloemLinear* weight, const PhloemTeam* team, int32_t rows);
void phloem_multiply(const PhloemLinear* weight, PhloemTeam* team, const void* x, int32_t rows, float* out, void* workspace);

// The attention of one layer over what its pool holds: `q` [token_count][heads][head_dim], `out` [token_count][heads * head_dim].
int64_t phloem_attend_workspace(const PhloemModel* model, const PhloemBatch* batch);
void phloem_attend(
    const PhloemModel* model, const PhloemLayer* layer, PhloemTeam* team, const PhloemBatch* batch, const void* q, void* out,
    void* workspace);
// Stores `k` and `v` f32 [token_count][kv_heads][head_dim] at the batch's positions.
void phloem_store(const PhloemModel* model, const PhloemLayer* layer, const PhloemBatch* batch, const float* k, const float* v);

int64_t phloem_draw_workspace(const PhloemDraws* draws, const PhloemTeam* team);
void phloem_draw(const PhloemDraws* draws, PhloemTeam* team, void* workspace);

int64_t phloem_score_workspace(const PhloemScores* scores, const PhloemTeam* team);
void phloem_score(const PhloemScores* scores, PhloemTeam* team, void* workspace);

#ifdef __cplusplus
}
#endif
