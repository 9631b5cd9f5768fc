/*
 * streams.c: threads allocate, use and free on several streams of a device, and kernels see whether
 * memory was reused before its time.
 *
 *     test_runtime_streams [STEPS [BYTES [careless]]]
 *
 * Every tensor is written on its own stream and verified there before it is freed, often by another
 * thread. Now and then another stream verifies it too, after an event, and record_stream says so.
 * Kernels that only spin put the streams far behind the threads, and more is asked for than the
 * budget holds, so that memory goes from stream to stream. `careless` leaves record_stream out and
 * must find damage: the proof that the test would see it. It runs `native` alone, which unmaps
 * nothing: to use what is unmapped is a fault of the GPU, behind which a process can do no more.
 *
 * Runs on the machine's driver, or on the tests' own libcuda, whose kernels are done when they are
 * launched; there it covers the runtime's side only, and is short.
 */
#include "../test.h"

#include <internal/error.h>
#include <pleat/runtime.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <tools/replay/canary_cuda.h>
#include <vmm/cuda.h>

enum { THREADS = 8, STREAMS = 4, TENSORS = 192 };

static const char spin_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                               ".visible .entry spin(.param .u64 cycles)\n"
                               "{\n"
                               ".reg .pred %p;\n"
                               ".reg .b64 %rd<5>;\n"
                               "ld.param.u64 %rd1, [cycles];\n"
                               "mov.u64 %rd2, %clock64;\n"
                               "again:\n"
                               "mov.u64 %rd3, %clock64;\n"
                               "sub.u64 %rd4, %rd3, %rd2;\n"
                               "setp.lt.u64 %p, %rd4, %rd1;\n"
                               "@%p bra again;\n"
                               "ret;\n"
                               "}\n";

typedef struct tensor {
    pthread_mutex_t lock;
    pleat_va at; /* 0: none */
    uint64_t bytes, seed;
    int stream;
} tensor;

static struct {
    uint64_t steps, most_bytes;
    bool careless;
    pleat_vmm vmm;
    canary_cuda *canary;
    pleat__cuda_kernel spin;
    pleat_stream streams[STREAMS];
    pleat_runtime *runtime;
    tensor tensors[TENSORS];
    uint64_t refused[THREADS], shared[THREADS];
    char failure[THREADS][256];
} b = {.steps = 150, .most_bytes = 3 << 20};

#define VERB(name, ...) (b.vmm.ops->name(b.vmm.self, __VA_ARGS__))

static pleat_result spin(test_random *random, int stream)
{
    uint64_t cycles = test_random_below(random, 60000); /* up to 30 us */
    void *arguments[] = {&cycles};
    return pleat__cuda_launch(&b.vmm, &b.spin, b.streams[stream], 1, 1, arguments);
}

static pleat_result verify(const tensor *t, int stream)
{
    return canary_cuda_verify(b.canary, b.streams[stream], t->at, t->bytes, t->seed);
}

static pleat_result make(tensor *t, test_random *random, uint64_t *refused)
{
    static const uint64_t shares[] = {512, 64, 8, 2, 1}; /* most are small */
    uint64_t most = b.most_bytes / shares[test_random_below(random, 5)];
    t->bytes = 1 + test_random_below(random, most);
    t->seed = test_random_next(random);
    t->stream = (int)test_random_below(random, STREAMS);
    pleat_va at;
    pleat_result result = pleat_alloc(b.runtime, t->bytes, b.streams[t->stream], &at);
    if (result == PLEAT_E_OUT_OF_MEMORY || result == PLEAT_E_BUDGET) {
        ++*refused;
        return PLEAT_OK;
    }
    PLEAT_TRY(result);
    t->at = at;
    PLEAT_TRY(spin(random, t->stream));
    return canary_cuda_write(b.canary, b.streams[t->stream], t->at, t->bytes, t->seed);
}

/* Another stream reads the tensor, after all that its own was given by now. */
static pleat_result share(const tensor *t, test_random *random, pleat_event event)
{
    int other = (t->stream + 1 + (int)test_random_below(random, STREAMS - 1)) % STREAMS;
    PLEAT_TRY(VERB(event_record, event, b.streams[t->stream]));
    PLEAT_TRY(VERB(stream_wait, b.streams[other], event));
    PLEAT_TRY(spin(random, other));
    PLEAT_TRY(verify(t, other));
    return b.careless ? PLEAT_OK : pleat_record_stream(b.runtime, t->at, b.streams[other]);
}

static pleat_result drop(tensor *t)
{
    pleat_va at = t->at;
    t->at = 0;
    return pleat_free(b.runtime, at);
}

static pleat_result step(test_random *random, pleat_event event, int thread)
{
    tensor *t = &b.tensors[test_random_below(random, TENSORS)];
    pleat_result result = PLEAT_OK;
    if (pthread_mutex_trylock(&t->lock) != 0)
        return PLEAT_OK;
    if (t->at == 0) {
        result = make(t, random, &b.refused[thread]);
    } else {
        if (test_random_below(random, 3) == 0) {
            b.shared[thread]++;
            result = share(t, random, event);
        }
        if (result == PLEAT_OK && test_random_below(random, 2) == 0) {
            result = verify(t, t->stream);
            if (result == PLEAT_OK)
                result = drop(t);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return result;
}

static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument;
    test_random random = {0x5eed + (uint64_t)thread};
    pleat_event event;
    pleat_result result = VERB(event_create, 0, &event);
    for (uint64_t i = 0; i < b.steps && result == PLEAT_OK; i++)
        result = step(&random, event, thread);
    if (result == PLEAT_OK)
        result = VERB(event_destroy, event);
    if (result != PLEAT_OK)
        snprintf(b.failure[thread], sizeof b.failure[thread], "%s: %s", pleat_result_name(result),
                 pleat_last_error()->text);
    return NULL;
}

static void run(const char *policy)
{
    pthread_t threads[THREADS];
    pleat_runtime_options options = {
        .size = sizeof options, .policy = policy, .budget_bytes = b.most_bytes / 512 * 512 * 20};
    memset(b.refused, 0, sizeof b.refused);
    memset(b.shared, 0, sizeof b.shared);
    assert_ok(pleat_runtime_create(b.vmm, &options, &b.runtime));
    for (intptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++)
        assert_string_equal(b.failure[i], "");
}

static uint64_t finish(const char *policy)
{
    uint64_t wrong, refused = 0, shared = 0;
    for (int i = 0; i < TENSORS; i++) {
        if (b.tensors[i].at != 0) {
            assert_ok(verify(&b.tensors[i], b.tensors[i].stream));
            assert_ok(drop(&b.tensors[i]));
        }
    }
    for (int i = 0; i < STREAMS; i++)
        assert_ok(pleat__cuda_stream_finish(&b.vmm, 0, b.streams[i]));
    assert_ok(canary_cuda_wrong(b.canary, &wrong));
    for (int i = 0; i < THREADS; i++) {
        refused += b.refused[i];
        shared += b.shared[i];
    }
    pleat_stats stats = pleat_stats_of(b.runtime);
    print_message("%s: %llu requests, %llu refused, %llu uses by other streams, %llu wrong words\n",
                  policy, (unsigned long long)stats.requests, (unsigned long long)refused,
                  (unsigned long long)shared, (unsigned long long)wrong);
    assert_true(stats.requests > refused && shared > 0);
    assert_true(stats.peak_physical_bytes <= b.most_bytes / 512 * 512 * 20);
    pleat_runtime_destroy(b.runtime);
    return wrong;
}

static void streams_reuse_no_byte_too_early(void **state)
{
    static const char *const policies[] = {"native", "expandable", "gmlake", "pleat"};
    (void)state;
    size_t count = b.careless ? 1 : sizeof policies / sizeof *policies;
    for (size_t i = 0; i < count; i++) {
        run(policies[i]);
        assert_true((finish(policies[i]) != 0) == b.careless);
    }
}

static int set_up(void **state)
{
    (void)state;
    assert_ok(pleat_vmm_cuda(&b.vmm));
    assert_ok(canary_cuda_create(&b.vmm, 0, &b.canary));
    assert_ok(pleat__cuda_kernel_load(&b.vmm, 0, spin_ptx, "spin", &b.spin));
    for (int i = 0; i < STREAMS; i++)
        assert_ok(b.vmm.ops->stream_create(b.vmm.self, 0, &b.streams[i]));
    for (int i = 0; i < TENSORS; i++)
        assert_int_equal(pthread_mutex_init(&b.tensors[i].lock, NULL), 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < STREAMS; i++)
        assert_ok(b.vmm.ops->stream_destroy(b.vmm.self, 0, b.streams[i]));
    assert_ok(pleat__cuda_kernel_unload(&b.vmm, &b.spin));
    canary_cuda_destroy(b.canary);
    pleat_vmm_destroy(&b.vmm);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(streams_reuse_no_byte_too_early)};
    if (argc > 1)
        b.steps = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        b.most_bytes = strtoull(argv[2], NULL, 10);
    b.careless = argc > 3 && strcmp(argv[3], "careless") == 0;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
