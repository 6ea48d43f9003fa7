/* The runner: loads ONE candidate binary and calls it on raw buffers. No Python, no torch.
 *
 * Usage: kforge_runner --artifact FD --control FD --threads N [--fence 0|1] [--uid N] [--lifeline FD]
 *
 * Commands arrive on a SOCK_SEQPACKET socket as one fixed-size struct each, with memfds attached (SCM_RIGHTS); every
 * command is answered by one fixed-size struct. Inputs lie in a memfd that this process can map read-only only, outputs
 * leave through a second one. The layout of the structs is mirrored in protocol.py.
 *
 * Each buffer is an allocation of its own:
 *   CPU   [guard page][canary ........][data, exact size][canary ...][guard page]
 *   CUDA  one cudaMalloc: [canary][data, exact size][canary]
 * `exact` buffers (for memory checkers) have no canaries: the checker's red zones begin at the last byte.
 * Canaries are NaN for every floating dtype, so that a read past the end shows in the result, and hold secret bits.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#ifdef KFORGE_CUDA
#include <cuda_runtime_api.h>
#endif

#define MAGIC 0x4b464f52u
#define PROTOCOL_VERSION 1u
#define MAX_BUFFERS 128
#define MAX_DIMS 32
#define MAX_SCALARS 32
#define MAX_SLOTS 256
#define MESSAGE_BYTES 512
#define PAGE 4096u
#define SPOILED_BYTES 4u
#define SMALL_BYTES (1u << 16)
#define WORKSPACE_BIT MAX_BUFFERS /* the workspace's bit in `broken` */

enum { OP_READY = 1, OP_LOAD = 2, OP_RUN = 3, OP_TIME = 4, OP_UNLOAD = 5, OP_QUIT = 6 };
enum { KIND_INPUT = 0, KIND_INOUT = 1, KIND_OUTPUT = 2 };
enum { FLAG_EXACT = 1, FLAG_BATCH = 2, FLAG_COLLECT = 4, FLAG_PREPARE = 8 };
enum {
    ERROR_NONE = 0,
    ERROR_REQUEST = 1,    /* the command contradicts itself: a fault of the judge */
    ERROR_MEMORY = 2,     /* a buffer could not be allocated */
    ERROR_WORKSPACE = 3,  /* kforge_workspace returned nonsense, or its memory could not be had */
    ERROR_DEVICE = 4,     /* a CUDA call of ours failed; `status` is the cudaError_t */
    ERROR_LAUNCH = 5,     /* the candidate returned `status` != 0 */
    ERROR_ASYNC = 6,      /* the device failed after the launch; `status` is the cudaError_t */
    ERROR_LOAD = 7        /* dlopen or a symbol failed; see `message` */
};
enum { REPLY_DYING = 1, REPLY_HAS_WORKSPACE = 2, REPLY_HAS_FFI = 4 };
enum { REPLY_UID_DROPPED = 8, REPLY_NO_NETWORK = 16, REPLY_FILES_READ_ONLY = 32 };

typedef struct {
    uint32_t kind, reserved;
    uint64_t in_offset, out_offset, size, alignment;
} buffer_request;

typedef struct {
    uint32_t magic, version, op, flags;
    uint32_t slot, count, buffers, dims;
    uint32_t scalars, core; /* core: 1 + the one that TIME begins on, 0 for any */
    uint64_t nonce, iterations, warmup, flush_bytes, in_bytes, out_bytes;
    int64_t dim[MAX_DIMS];
    double scalar[MAX_SCALARS];
    buffer_request buffer[MAX_BUFFERS];
} request;

typedef struct {
    uint32_t magic, version, op, flags;
    uint32_t error;
    int32_t status;
    int64_t workspace_bytes, failed_at;
    uint64_t nonce, total_ns;
    uint8_t changed[24], broken[24];
    char message[MESSAGE_BYTES];
} reply;

typedef struct {
    uint8_t *base;     /* of the allocation */
    size_t base_bytes; /* of the allocation */
    uint8_t *front;    /* first canary byte */
    uint8_t *data;
    size_t size;
    uint8_t *end; /* one past the last canary byte */
    int exact, live;
} region;

typedef struct {
    int used;
    request shape; /* the LOAD command that filled it */
    uint8_t *in, *out;
    region buffer[MAX_BUFFERS], workspace;
#ifdef KFORGE_CUDA
    region pristine[MAX_BUFFERS]; /* device copies of the inout buffers' content */
#endif
    int64_t workspace_bytes;
    int intact; /* the inputs are as given: no call since they were put there or compared */
} slot;

typedef int (*invoke_function)(void *const *, const int64_t *, const double *, void *, void *);
typedef int64_t (*workspace_function)(const int64_t *);

static slot slots[MAX_SLOTS];
static invoke_function candidate_invoke;
static workspace_function candidate_workspace;
static int control_fd = -1;
static uint64_t canary_key;
static uint8_t *scratch;
static size_t scratch_bytes;
static reply answer;
#ifdef KFORGE_CUDA
static cudaStream_t stream;
static uint8_t *staging; /* pinned */
#define STAGING_BYTES (8u << 20)
#define LEAD_CHUNK 32
#endif

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void set_bit(uint8_t *bits, int index) { bits[index / 8] |= (uint8_t)(1u << (index % 8)); }

static int fail(uint32_t error, int32_t status, const char *text) {
    if (answer.error == ERROR_NONE) {
        answer.error = error;
        answer.status = status;
        snprintf(answer.message, sizeof answer.message, "%s", text);
    }
    return -1;
}

#ifdef KFORGE_CUDA
/* An error that survives cudaGetLastError has destroyed the context: answer, then leave. */
static int device_failed(uint32_t error, cudaError_t code, const char *what) {
    char text[MESSAGE_BYTES];
    if (code == cudaSuccess) return 0;
    snprintf(text, sizeof text, "%s: %s (%s)", what, cudaGetErrorName(code), cudaGetErrorString(code));
    fail(error, (int32_t)code, text);
    (void)cudaGetLastError();
    if (cudaDeviceSynchronize() != cudaSuccess || code == cudaErrorIllegalAddress ||
        code == cudaErrorLaunchFailure || code == cudaErrorMisalignedAddress ||
        code == cudaErrorIllegalInstruction || code == cudaErrorInvalidAddressSpace ||
        code == cudaErrorInvalidPc || code == cudaErrorHardwareStackError || code == cudaErrorAssert ||
        code == cudaErrorLaunchTimeout || code == cudaErrorECCUncorrectable)
        answer.flags |= REPLY_DYING;
    return -1;
}
#define DEVICE(call) device_failed(ERROR_DEVICE, (call), #call)
#endif

static int finish(void) {
#ifdef KFORGE_CUDA
    cudaError_t last = cudaGetLastError();
    cudaError_t code = cudaDeviceSynchronize(); /* every stream: work on another one counts, too */
    return device_failed(ERROR_ASYNC, code != cudaSuccess ? code : last, "the device failed after the launch");
#else
    return 0;
#endif
}

/* ---- memory primitives: the only part that differs between CPU and CUDA ---- */

static int put(uint8_t *to, const void *from, size_t bytes) {
    if (bytes == 0) return 0;
#ifdef KFORGE_CUDA
    return DEVICE(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
#else
    memcpy(to, from, bytes);
    return 0;
#endif
}

static int get(void *to, const uint8_t *from, size_t bytes) {
    if (bytes == 0) return 0;
#ifdef KFORGE_CUDA
    return DEVICE(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
#else
    memcpy(to, from, bytes);
    return 0;
#endif
}

static int fill(uint8_t *to, int byte, size_t bytes) {
    if (bytes == 0) return 0;
#ifdef KFORGE_CUDA
    return DEVICE(cudaMemset(to, byte, bytes));
#else
    memset(to, byte, bytes);
    return 0;
#endif
}

/* 0 equal, 1 different, -1 failed. */
static int differs(const uint8_t *memory, const uint8_t *expected, size_t bytes) {
#ifdef KFORGE_CUDA
    for (size_t done = 0; done < bytes; done += STAGING_BYTES) {
        size_t step = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        if (get(staging, memory + done, step)) return -1;
        if (memcmp(staging, expected + done, step) != 0) return 1;
    }
    return 0;
#else
    return bytes != 0 && memcmp(memory, expected, bytes) != 0;
#endif
}

/* ---- canaries ---- */

/* Byte at `position` of the canary stream: little-endian 16-bit words 0xFF81..0xFFFF with six secret bits, which are NaN
 * as float16, bfloat16, float32 and float64. Positions are addresses: buffers have different canaries, so a kernel that
 * reads past one and writes past another (a pointwise loop with i <= n) does not copy the right bytes. */
static uint8_t canary_byte(size_t position) {
    uint64_t word = (position / 2 + 1) * 0x9e3779b97f4a7c15u ^ canary_key;
    if (position % 2) return 0xff;
    word ^= word >> 29;
    word *= 0xbf58476d1ce4e5b9u;
    return (uint8_t)(0x81 | (word >> 57 & 0x7e));
}

static int canary_write(uint8_t *from, uint8_t *to) {
    uint8_t block[PAGE];
    while (from < to) {
        size_t step = (size_t)(to - from) < sizeof block ? (size_t)(to - from) : sizeof block;
        for (size_t i = 0; i < step; i++) block[i] = canary_byte((size_t)(from + i));
        if (put(from, block, step)) return -1;
        from += step;
    }
    return 0;
}

static int canary_differs(uint8_t *from, uint8_t *to) {
    uint8_t block[PAGE];
    while (from < to) {
        size_t step = (size_t)(to - from) < sizeof block ? (size_t)(to - from) : sizeof block;
        for (size_t i = 0; i < step; i++) block[i] = canary_byte((size_t)(from + i));
        int result = differs(from, block, step);
        if (result) return result;
        from += step;
    }
    return 0;
}

/* ---- regions ---- */

#ifndef KFORGE_CUDA
/* Lowest address >= at that `alignment` divides and 2*alignment does not (from 64 on: only the former). */
static uint8_t *place(uint8_t *at, size_t alignment) {
    size_t period = alignment < 64 ? 2 * alignment : alignment, want = alignment < 64 ? alignment : 0;
    uintptr_t address = (uintptr_t)at, low = address - address % period + want;
    return (uint8_t *)(low >= address ? low : low + period);
}
#endif

static void region_free(region *r) {
    if (!r->live) return;
#ifdef KFORGE_CUDA
    (void)cudaFree(r->base);
#else
    if (r->exact)
        free(r->base);
    else
        munmap(r->base, r->base_bytes);
#endif
    memset(r, 0, sizeof *r);
}

static int region_allocate(region *r, size_t size, size_t alignment, int exact) {
    size_t offset = alignment < 64 ? alignment : 0;
    memset(r, 0, sizeof *r);
    r->exact = exact;
    r->size = size;
#ifdef KFORGE_CUDA
    size_t lead = exact ? 0 : PAGE;
    r->base_bytes = lead + offset + size + (exact ? (size == 0) : PAGE);
    if (DEVICE(cudaMalloc((void **)&r->base, r->base_bytes))) return -1;
    r->front = r->base;
    r->data = r->base + lead + offset;
    r->end = r->base + r->base_bytes;
#else
    if (exact) {
        if (posix_memalign((void **)&r->base, alignment < 64 ? 64 : alignment, offset + size + (size == 0))) {
            r->base = NULL;
            return fail(ERROR_MEMORY, ENOMEM, "posix_memalign failed");
        }
        r->data = r->front = r->end = r->base + offset;
    } else {
        size_t inner = (2 * PAGE + 2 * alignment + size + PAGE - 1) / PAGE * PAGE;
        r->base_bytes = inner + 2 * PAGE;
        r->base = mmap(NULL, r->base_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (r->base == MAP_FAILED) return fail(ERROR_MEMORY, errno, "mmap failed");
        mprotect(r->base, PAGE, PROT_NONE);
        mprotect(r->base + PAGE + inner, PAGE, PROT_NONE);
        r->front = r->base + PAGE;
        r->end = r->base + PAGE + inner;
        r->data = place(r->front + PAGE / 2, alignment);
    }
#endif
    r->live = 1;
    if (exact) return 0;
    return canary_write(r->front, r->data) || canary_write(r->data + size, r->end) ? -1 : 0;
}

static int region_broken(const region *r) {
    if (!r->live || r->exact) return 0;
    int before = canary_differs(r->front, r->data);
    return before ? before : canary_differs(r->data + r->size, r->end);
}

/* ---- slots ---- */

static void slot_free(slot *s) {
    if (!s->used) return;
    for (uint32_t i = 0; i < s->shape.buffers; i++) region_free(&s->buffer[i]);
#ifdef KFORGE_CUDA
    for (uint32_t i = 0; i < s->shape.buffers; i++) region_free(&s->pristine[i]);
#endif
    region_free(&s->workspace);
    if (s->in) munmap(s->in, s->shape.in_bytes);
    if (s->out) munmap(s->out, s->shape.out_bytes);
    memset(s, 0, sizeof *s);
}

static int valid_load(const request *q) {
    if (q->slot >= MAX_SLOTS || q->buffers > MAX_BUFFERS || q->dims > MAX_DIMS || q->scalars > MAX_SCALARS) return 0;
    for (uint32_t i = 0; i < q->buffers; i++) {
        const buffer_request *b = &q->buffer[i];
        if (b->kind > KIND_OUTPUT || b->alignment == 0 || b->alignment > PAGE || b->alignment & (b->alignment - 1))
            return 0;
        if (b->kind != KIND_OUTPUT && (b->in_offset > q->in_bytes || b->size > q->in_bytes - b->in_offset)) return 0;
        if (b->kind != KIND_INPUT && (b->out_offset > q->out_bytes || b->size > q->out_bytes - b->out_offset)) return 0;
    }
    return 1;
}

static void *map_fd(int fd, size_t bytes, int protection) {
    struct stat info;
    if (bytes == 0) return NULL;
    if (fd < 0 || fstat(fd, &info) || (uint64_t)info.st_size < bytes) return MAP_FAILED;
    return mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
}

static int slot_workspace(slot *s) {
    int64_t bytes = candidate_workspace ? candidate_workspace(s->shape.dim) : 0;
    answer.workspace_bytes = s->workspace_bytes = bytes;
    if (bytes < 0 || bytes > (int64_t)1 << 40) return fail(ERROR_WORKSPACE, 0, "workspace_bytes is out of range");
    if (bytes == 0) return 0;
    if (region_allocate(&s->workspace, (size_t)bytes, 256, (s->shape.flags & FLAG_EXACT) != 0))
        return answer.error = ERROR_WORKSPACE, -1;
    return 0;
}

/* Inout buffers as given, before another call. */
static int slot_restore_inout(slot *s) {
    for (uint32_t i = 0; i < s->shape.buffers; i++) {
        const buffer_request *b = &s->shape.buffer[i];
        if (b->kind != KIND_INOUT || b->size == 0) continue;
#ifdef KFORGE_CUDA
        /* In stream order, because the previous call on this slot may still be running. */
        if (DEVICE(cudaMemcpyAsync(s->buffer[i].data, s->pristine[i].data, b->size, cudaMemcpyDeviceToDevice, stream)))
            return -1;
#else
        memcpy(s->buffer[i].data, s->in + b->in_offset, b->size);
#endif
    }
    return 0;
}

#ifdef KFORGE_CUDA
static int slot_keep_pristine(slot *s, uint32_t i) {
    const buffer_request *b = &s->shape.buffer[i];
    if (b->kind != KIND_INOUT) return 0;
    return region_allocate(&s->pristine[i], b->size, 64, 1) || put(s->pristine[i].data, s->in + b->in_offset, b->size);
}
#endif

static int slot_load(const request *q, const int *fds, int fd_count) {
    slot *s;
    if (!valid_load(q) || fd_count < 2) return fail(ERROR_REQUEST, 0, "malformed LOAD");
    s = &slots[q->slot];
    slot_free(s);
    s->used = 1;
    s->shape = *q;
    s->in = map_fd(fds[0], q->in_bytes, PROT_READ);
    if (s->in == MAP_FAILED) return s->in = NULL, fail(ERROR_REQUEST, errno, "cannot map the inputs");
    s->out = map_fd(fds[1], q->out_bytes, PROT_READ | PROT_WRITE);
    if (s->out == MAP_FAILED) return s->out = NULL, fail(ERROR_REQUEST, errno, "cannot map the outputs");
    for (uint32_t i = 0; i < q->buffers; i++) {
        const buffer_request *b = &q->buffer[i];
        if (region_allocate(&s->buffer[i], b->size, b->alignment, (q->flags & FLAG_EXACT) != 0)) return -1;
        if (b->kind == KIND_OUTPUT ? fill(s->buffer[i].data, 0xff, b->size)
                                   : put(s->buffer[i].data, s->in + b->in_offset, b->size))
            return -1;
#ifdef KFORGE_CUDA
        if (slot_keep_pristine(s, i)) return -1;
#endif
    }
    s->intact = 1;
    return slot_workspace(s) || finish() ? -1 : 0;
}

static uint32_t call_number;

static uint64_t draw(void) {
    static uint64_t state;
    state = (state ^ canary_key) * 0x9E3779B97F4A7C15u + 1;
    return state >> 20;
}

/* nan or a huge number; after some calls also one that may well be a result, lest a candidate know the judge by it. */
static int draw_poison(void) {
    static const uint8_t poisons[] = {0xff, 0x7f, 0x3f};
    return call_number++ < 4 ? poisons[call_number % 2] : poisons[draw() % sizeof poisons];
}

/* Inputs as given, outputs and workspace poisoned; the poison varies so that no constant passes for a result. */
static int slot_prepare(slot *s) {
    int poison = draw_poison();
    for (uint32_t i = 0; i < s->shape.buffers; i++) {
        const buffer_request *b = &s->shape.buffer[i];
        if (b->kind == KIND_INPUT && s->intact) continue;
        if (b->kind == KIND_OUTPUT ? fill(s->buffer[i].data, poison, b->size)
                                   : put(s->buffer[i].data, s->in + b->in_offset, b->size))
            return -1;
    }
    s->intact = 1;
    return s->workspace.live ? fill(s->workspace.data, draw() % 2 ? 0xff : 0x7f, s->workspace.size) : 0;
}

/* Copy results out, and note what was changed that must not be. */
static int slot_collect(slot *s) {
    int intact = 1;
    for (uint32_t i = 0; i < s->shape.buffers; i++) {
        const buffer_request *b = &s->shape.buffer[i];
        const region *r = &s->buffer[i];
        int broken = region_broken(r), changed = 0;
        if (b->kind == KIND_INPUT)
            changed = differs(r->data, s->in + b->in_offset, b->size);
        else if (get(s->out + b->out_offset, r->data, b->size))
            return -1;
        if (broken < 0 || changed < 0) return -1;
        if (broken) set_bit(answer.broken, (int)i);
        if (changed) set_bit(answer.changed, (int)i);
        intact = intact && !changed;
    }
    s->intact = intact;
    int broken = region_broken(&s->workspace);
    if (broken > 0) set_bit(answer.broken, WORKSPACE_BIT);
    return broken < 0 ? -1 : 0;
}

/* ---- calling the candidate ---- */

static void *const *slot_pointers(slot *s, void **pointers) {
    for (uint32_t i = 0; i < s->shape.buffers; i++) pointers[i] = s->buffer[i].data;
    return pointers;
}

static int invoke(slot *s, void *const *pointers) {
    s->intact = 0;
#ifdef KFORGE_CUDA
    return candidate_invoke(pointers, s->shape.dim, s->shape.scalar, s->workspace.data, stream);
#else
    return candidate_invoke(pointers, s->shape.dim, s->shape.scalar, s->workspace.data, NULL);
#endif
}

#if defined(__x86_64__)
/* Rounding mode, flushing of subnormal numbers, traps: what a call changes there, it changes for the whole process. */
static uint32_t arithmetic_mode(void) {
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return (__builtin_ia32_stmxcsr() & 0xffc0u) << 16 | x87;
}
#else
static uint32_t arithmetic_mode(void) { return 0; }
#endif

/* What a call may leave changed in the process, to the harm of everything that runs there later. */
typedef struct {
    uint32_t arithmetic;
    int threads, thread_limit, level, active_levels;
} process_mode;

static process_mode present_mode(void) {
    process_mode mode = {arithmetic_mode(), omp_get_max_threads(), omp_get_thread_limit(), omp_get_level(),
                         omp_get_max_active_levels()};
    return mode;
}

static int mode_changed(process_mode before) {
    process_mode now = present_mode();
    if (now.arithmetic != before.arithmetic)
        return fail(ERROR_LAUNCH, 0, "launch left another rounding mode or flushing of subnormal numbers behind");
    if (now.level != before.level) return fail(ERROR_LAUNCH, 0, "launch left a team of OpenMP threads open");
    if (now.threads != before.threads || now.thread_limit != before.thread_limit ||
        now.active_levels != before.active_levels)
        return fail(ERROR_LAUNCH, 0, "launch changed how many threads later OpenMP regions get");
    return 0;
}

static int launch_failed(int status, uint64_t at) {
    if (status == 0) return 0;
    answer.failed_at = (int64_t)at;
#ifdef KFORGE_CUDA
    return device_failed(ERROR_LAUNCH, (cudaError_t)status, "launch returned an error");
#else
    return fail(ERROR_LAUNCH, status, "launch returned an error");
#endif
}

static int command_run(const request *q) {
    void *pointers[MAX_BUFFERS];
    if (q->slot >= MAX_SLOTS || !slots[q->slot].used) return fail(ERROR_REQUEST, 0, "RUN of an empty slot");
    slot *s = &slots[q->slot];
    answer.workspace_bytes = s->workspace_bytes;
    if (slot_prepare(s) || finish()) return -1;
    slot_pointers(s, pointers);
    process_mode mode = present_mode();
    uint64_t start = now_ns();
    int status = invoke(s, pointers);
    int failed = launch_failed(status, 0) || finish();
    failed = failed || mode_changed(mode);
    answer.total_ns = now_ns() - start;
    return failed ? -1 : slot_collect(s);
}

/* ---- timing ---- */

static int scratch_reserve(size_t bytes) {
    if (bytes <= scratch_bytes) return 0;
#ifdef KFORGE_CUDA
    if (scratch) (void)cudaFree(scratch);
    scratch = NULL;
    scratch_bytes = 0;
    if (DEVICE(cudaMalloc((void **)&scratch, bytes))) return -1;
#else
    free(scratch);
    scratch_bytes = 0;
    if (posix_memalign((void **)&scratch, PAGE, bytes)) return scratch = NULL, fail(ERROR_MEMORY, ENOMEM, "scratch");
    memset(scratch, 1, bytes);
#endif
    scratch_bytes = bytes;
    return 0;
}

/* Push everything else out of the caches. Each thread walks its share, so that private caches are flushed as well. */
static int flush(size_t bytes) {
#ifdef KFORGE_CUDA
    return DEVICE(cudaMemsetAsync(scratch, 0, bytes, stream));
#else
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes; i += 64) scratch[i]++;
    return 0;
#endif
}

/* Before iteration `at`: the set that it runs on, put into its initial state. */
static slot *rotate(const request *q, uint64_t at, void **pointers) {
    slot *s = &slots[q->slot + at % q->count];
    if (!(q->flags & FLAG_BATCH) && slot_restore_inout(s)) return NULL;
    slot_pointers(s, pointers);
    return s;
}

static int copy_element(uint8_t *data, size_t to, size_t from) {
#ifdef KFORGE_CUDA
    return DEVICE(cudaMemcpyAsync(data + to, data + from, SPOILED_BYTES, cudaMemcpyDeviceToDevice, stream)) ? -1 : 0;
#else
    memcpy(data + to, data + from, SPOILED_BYTES);
    return 0;
#endif
}

static int fill_in_order(void *data, int value, size_t bytes) {
#ifdef KFORGE_CUDA
    return DEVICE(cudaMemsetAsync(data, value, bytes, stream)) ? -1 : 0;
#else
    memset(data, value, bytes);
    return 0;
#endif
}

/* Before a timed call, outside its window: a few elements of each output somewhere get the values of others, so that
 * looking at it does not tell whether the call may be skipped; or a small one is poisoned whole, now and then (a large one
 * that would bring into the caches). The workspace is poisoned: nothing is kept there. */
static int spoil(slot *s) {
    for (uint32_t i = 0; i < s->shape.buffers; i++) {
        const buffer_request *b = &s->shape.buffer[i];
        size_t elements = b->size / SPOILED_BYTES;
        if (b->kind != KIND_OUTPUT) continue;
        if (elements < 2 || (b->size <= SMALL_BYTES && draw() % 4 == 0)) {
            if (fill_in_order(s->buffer[i].data, draw_poison(), b->size)) return -1;
            continue;
        }
        for (int place = 0; place < 4; place++) {
            size_t to = draw() % elements, from = (to + 1 + draw() % (elements - 1)) % elements;
            if (copy_element(s->buffer[i].data, to * SPOILED_BYTES, from * SPOILED_BYTES)) return -1;
        }
    }
    return s->workspace.live ? fill_in_order(s->workspace.data, 0x7f, s->workspace.size) : 0;
}

static int time_batch(const request *q) {
    void *pointers[MAX_BUFFERS];
    if (finish()) return -1;
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < q->iterations; i++) {
        slot *s = rotate(q, i, pointers);
        if (launch_failed(invoke(s, pointers), i)) return -1;
    }
    if (finish()) return -1;
    answer.total_ns = now_ns() - start;
    return 0;
}

#ifdef KFORGE_CUDA
/* Keep the device busy so long that the host can queue a chunk of calls ahead of it: otherwise the events of a short
 * kernel would measure how fast the host launches. Then one untimed call, so that the chunk starts as it goes on. */
static int lead_in(const request *q, uint64_t at) {
    void *pointers[MAX_BUFFERS];
    size_t bytes = scratch_bytes;
    for (int i = 0; i < 16; i++)
        if (DEVICE(cudaMemsetAsync(scratch, 0, bytes, stream))) return -1;
    slot *s = rotate(q, at + q->count - 1, pointers);
    return s == NULL || launch_failed(invoke(s, pointers), at) ? -1 : 0;
}

static int time_calls(const request *q, uint64_t *samples) {
    static cudaEvent_t begin[LEAD_CHUNK], end[LEAD_CHUNK];
    void *pointers[MAX_BUFFERS];
    if (scratch_reserve(q->flush_bytes > (256u << 20) ? q->flush_bytes : 256u << 20)) return -1;
    for (int i = 0; begin[LEAD_CHUNK - 1] == NULL && i < LEAD_CHUNK; i++)
        if (DEVICE(cudaEventCreate(&end[i])) || DEVICE(cudaEventCreate(&begin[i]))) return -1;
    for (uint64_t first = 0; first < q->iterations; first += LEAD_CHUNK) {
        uint64_t count = q->iterations - first < LEAD_CHUNK ? q->iterations - first : LEAD_CHUNK;
        if (lead_in(q, first)) return -1;
        for (uint64_t i = 0; i < count; i++) {
            slot *s = rotate(q, first + i, pointers);
            if (s == NULL || (q->flush_bytes && flush(q->flush_bytes)) || spoil(s)) return -1;
            if (DEVICE(cudaEventRecord(begin[i], stream))) return -1;
            if (launch_failed(invoke(s, pointers), first + i)) return -1;
            if (DEVICE(cudaEventRecord(end[i], stream))) return -1;
        }
        if (finish()) return -1;
        for (uint64_t i = 0; i < count; i++) {
            float milliseconds = 0;
            if (DEVICE(cudaEventElapsedTime(&milliseconds, begin[i], end[i]))) return -1;
            samples[first + i] = (uint64_t)((double)milliseconds * 1e6);
            answer.total_ns += samples[first + i];
        }
    }
    return 0;
}
#else
/* Cold data, warm code: after the flush one untimed call on the next set. In a model an operator's code is not evicted
 * between its calls, and eager has far more of it to lose than a candidate. */
static int make_cold(const request *q, uint64_t at) {
    void *pointers[MAX_BUFFERS];
    if (q->flush_bytes == 0) return 0;
    flush(q->flush_bytes);
    if (q->count == 1) return 0;
    slot *s = rotate(q, at + 1, pointers);
    return launch_failed(invoke(s, pointers), at);
}

static int time_calls(const request *q, uint64_t *samples) {
    void *pointers[MAX_BUFFERS];
    if (scratch_reserve(q->flush_bytes)) return -1;
    for (uint64_t i = 0; i < q->iterations; i++) {
        slot *s = rotate(q, i, pointers);
        if (make_cold(q, i) || spoil(s)) return -1;
        uint64_t start = now_ns();
        int status = invoke(s, pointers);
        samples[i] = now_ns() - start;
        answer.total_ns += samples[i];
        if (launch_failed(status, i)) return -1;
    }
    return 0;
}
#endif

/* Move this thread there; it may leave again, and threads that it makes are as free as it was before. Cores differ, if
 * only by who else uses them: a pair of blocks shares one. */
static void begin_on(uint32_t core) {
    cpu_set_t allowed, one;
    if (core >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed) || !CPU_ISSET(core, &allowed)) return;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

static int command_time(const request *q, const int *fds, int fd_count) {
    void *pointers[MAX_BUFFERS];
    int batch = (q->flags & FLAG_BATCH) != 0;
    if (fd_count < 1 || q->count == 0 || q->slot >= MAX_SLOTS || q->count > MAX_SLOTS - q->slot || !q->iterations)
        return fail(ERROR_REQUEST, 0, "malformed TIME");
    for (uint32_t i = 0; i < q->count; i++)
        if (!slots[q->slot + i].used) return fail(ERROR_REQUEST, 0, "TIME of an empty slot");
    uint64_t *samples = map_fd(fds[0], q->iterations * sizeof *samples, PROT_READ | PROT_WRITE);
    if (samples == MAP_FAILED) return fail(ERROR_REQUEST, errno, "cannot map the samples");
    if (q->core) begin_on(q->core - 1);
    process_mode mode = present_mode();
    int failed = 0;
    for (uint32_t i = 0; i < q->count && !failed && q->flags & FLAG_PREPARE; i++)
        failed = slot_prepare(&slots[q->slot + i]);
    failed = failed || finish();
    for (uint64_t i = 0; i < q->warmup && !failed; i++) {
        slot *s = rotate(q, i, pointers);
        failed = s == NULL || launch_failed(invoke(s, pointers), 0);
    }
    failed = failed || finish() || (batch ? time_batch(q) : time_calls(q, samples)) || mode_changed(mode);
    for (uint32_t i = 0; i < q->count && !failed && q->flags & FLAG_COLLECT; i++)
        failed = slot_collect(&slots[q->slot + i]);
    munmap(samples, q->iterations * sizeof *samples);
    return failed ? -1 : 0;
}

/* ---- the channel ---- */

static void send_answer(uint32_t op) {
    answer.magic = MAGIC;
    answer.version = PROTOCOL_VERSION;
    answer.op = op;
    while (send(control_fd, &answer, sizeof answer, MSG_NOSIGNAL) < 0)
        if (errno != EINTR) _exit(3);
    if (answer.flags & REPLY_DYING) _exit(0);
}

/* One command with up to two descriptors; -1 when the judge has closed the channel. */
static int receive(request *q, int *fds, int *fd_count) {
    char space[CMSG_SPACE(2 * sizeof(int))];
    struct iovec part = {q, sizeof *q};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    ssize_t got;
    do got = recvmsg(control_fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    *fd_count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            *fd_count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds, CMSG_DATA(c), (size_t)*fd_count * sizeof(int));
        }
    return got == (ssize_t)sizeof *q && q->magic == MAGIC && q->version == PROTOCOL_VERSION ? 0 : -1;
}

static void serve(void) {
    static request q;
    int fds[2], fd_count;
    while (receive(&q, fds, &fd_count) == 0) {
        memset(&answer, 0, sizeof answer);
        answer.failed_at = -1;
        answer.nonce = q.nonce; /* no reply can be sent before its command has arrived */
        switch (q.op) {
            case OP_LOAD: slot_load(&q, fds, fd_count); break;
            case OP_RUN: command_run(&q); break;
            case OP_TIME: command_time(&q, fds, fd_count); break;
            case OP_UNLOAD:
                if (q.slot < MAX_SLOTS) slot_free(&slots[q.slot]);
                break;
            case OP_QUIT: return;
            default: fail(ERROR_REQUEST, 0, "unknown command");
        }
        for (int i = 0; i < fd_count; i++) close(fds[i]);
        send_answer(q.op);
    }
}

/* ---- start ---- */

/* The kernel kills this process when the other end of the pipe closes, that is, when the judge is gone. */
static void tie_to(int lifeline) {
    fcntl(lifeline, F_SETOWN, getpid());
    fcntl(lifeline, F_SETSIG, SIGKILL);
    fcntl(lifeline, F_SETFL, fcntl(lifeline, F_GETFL) | O_ASYNC);
    char byte;
    fcntl(lifeline, F_SETFL, fcntl(lifeline, F_GETFL) | O_NONBLOCK);
    if (read(lifeline, &byte, 1) == 0) _exit(3); /* it had closed before */
}

/* ---- the fence ---- */

static int write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t written = fd < 0 ? -1 : write(fd, text, strlen(text));
    if (fd >= 0) close(fd);
    return written == (ssize_t)strlen(text) ? 0 : -1;
}

/* In a user namespace of our own, as the same user as before. */
static int map_user(uid_t uid, gid_t gid) {
    char line[64];
    (void)write_text("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "%u %u 1", uid, uid);
    if (write_text("/proc/self/uid_map", line)) return -1;
    snprintf(line, sizeof line, "%u %u 1", gid, gid);
    return write_text("/proc/self/gid_map", line);
}

/* Every mount read-only and shared with nobody. Devices are still written to. */
static int make_files_read_only(void) {
    struct {
        uint64_t set, clear, propagation, userns;
    } attributes = {1 /* MOUNT_ATTR_RDONLY */, 0, MS_PRIVATE, 0};
    const long mount_setattr = 442; /* newer than some C libraries */
    return (int)syscall(mount_setattr, AT_FDCWD, "/", 0x8000 /* AT_RECURSIVE */, &attributes, sizeof attributes);
}

static void drop_capabilities(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)syscall(SYS_capset, &head, none);
}

/* No network, no shared memory of others, no file that can be written to: as far as this machine allows. The flags of
 * the first reply say how far that was. Returns whether this process is now in a user namespace of its own, where there
 * is no other user to change to. */
static int raise_fence(void) {
    const int kinds = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    int own_user = 0;
    if (unshare(kinds)) {
        if (unshare(kinds | CLONE_NEWUSER)) return 0;
        own_user = 1;
        if (map_user(uid, gid)) return 1;
    }
    answer.flags |= REPLY_NO_NETWORK;
    if (make_files_read_only() == 0) answer.flags |= REPLY_FILES_READ_ONLY;
    if (own_user) drop_capabilities(); /* with which it could undo this */
    return own_user;
}

static void drop_privileges(uid_t uid) {
    struct rlimit processes = {512, 512};
    if (uid == 0) return;
    if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)) {
        fail(ERROR_LOAD, errno, "cannot change to an unprivileged user");
        send_answer(OP_READY);
        _exit(3);
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    setrlimit(RLIMIT_NPROC, &processes);
    answer.flags |= REPLY_UID_DROPPED;
}

static int load_candidate(int artifact) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", artifact);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return fail(ERROR_LOAD, 0, dlerror());
#ifndef KFORGE_ASAN /* which reads the binary again, for the source line of an error */
    close(artifact);
#endif
    candidate_invoke = (invoke_function)dlsym(library, "kforge_invoke");
    candidate_workspace = (workspace_function)dlsym(library, "kforge_workspace");
    if (candidate_invoke == NULL) return fail(ERROR_LOAD, 0, "the binary does not export kforge_invoke");
    if (candidate_workspace != NULL) answer.flags |= REPLY_HAS_WORKSPACE;
    if (dlsym(library, "__tvm_ffi_launch") != NULL) answer.flags |= REPLY_HAS_FFI;
    return 0;
}

static int start_device(void) {
#ifdef KFORGE_CUDA
    if (DEVICE(cudaSetDevice(0)) || DEVICE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))) return -1;
    return DEVICE(cudaMallocHost((void **)&staging, STAGING_BYTES)) ? -1 : 0;
#else
    return 0;
#endif
}

int main(int argc, char **argv) {
    struct rlimit none = {0, 0};
    int artifact = -1, threads = 1, fence = 0;
    uid_t uid = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        int value = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--artifact")) artifact = value;
        if (!strcmp(argv[i], "--control")) control_fd = value;
        if (!strcmp(argv[i], "--threads")) threads = value;
        if (!strcmp(argv[i], "--fence")) fence = value;
        if (!strcmp(argv[i], "--uid")) uid = (uid_t)value;
        if (!strcmp(argv[i], "--lifeline")) tie_to(value);
    }
    fcntl(control_fd, F_SETFD, FD_CLOEXEC);
    if (getrandom(&canary_key, sizeof canary_key, 0) != sizeof canary_key) canary_key = now_ns();
    setrlimit(RLIMIT_CORE, &none);
    answer.failed_at = -1;
    if (!fence || !raise_fence()) drop_privileges(uid);
    omp_set_num_threads(threads);
    if (start_device() == 0) load_candidate(artifact);
    send_answer(OP_READY);
    if (answer.error) return 3;
    serve();
    return 0;
}
