/*
 * remat.c: the pool, the table of costs and the searches against slow and simple ones; logs that
 * are wrong; runs whose figures are known.
 */
#include "test.h"

#include <plan/remat/run.h>
#include <string.h>
#include <time.h>

#define TENSORS 24u

static pleat__arena *arena;

static int begin(void **state)
{
    (void)state;
    return pleat__arena_create(&arena) == PLEAT_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    pleat__arena_destroy(arena);
    return 0;
}

/* ---- pool ---- */

/* Every granule's owner, beside the pool. */
#define GRANULES 512u
static uint32_t owners[GRANULES];

static void check_pool(const pleat__remat_pool *pool)
{
    assert_true(pleat__remat_pool_audit(pool));
    for (size_t i = 0; i < pool->count; i++) {
        const pleat__remat_block *b = &pool->blocks[i];
        for (uint64_t g = b->begin / 512; g < (b->begin + b->bytes) / 512; g++)
            assert_int_equal(owners[g], b->owner);
    }
    for (uint64_t c = 0; c < pool->chunks; c++) {
        uint64_t used = 0;
        for (uint64_t g = c * 16; g < (c + 1) * 16; g++)
            used += owners[g] != PLEAT__REMAT_FREE ? 512 : 0;
        assert_int_equal(pool->chunk_used[c], used);
    }
}

static void paint(uint64_t begin, uint64_t bytes, uint32_t owner)
{
    for (uint64_t g = begin / 512; g < (begin + bytes) / 512; g++)
        owners[g] = owner;
}

static void remat_pool_agrees_with_a_map_of_granules(void **state)
{
    (void)state;
    test_random random = test_random_begin("pool", 0x25);
    pleat__remat_pool pool;
    uint64_t begins[64];
    uint32_t count = 0;
    assert_ok(pleat__remat_pool_create(arena, GRANULES * 512, 16 * 512, &pool));
    paint(0, GRANULES * 512, PLEAT__REMAT_FREE);
    for (uint32_t step = 0; step < 4000; step++) {
        uint64_t bytes = (1 + test_random_below(&random, 40)) * 512, at;
        size_t block = pleat__remat_pool_find(&pool, bytes);
        if (count < 64 && block < pool.count && test_random_below(&random, 5) < 3) {
            bool right = test_random_below(&random, 2);
            assert_ok(pleat__remat_pool_take(&pool, block, bytes, right, step, &at));
            paint(at, bytes, step);
            begins[count++] = at;
        } else if (count > 0) {
            uint64_t which = test_random_below(&random, count);
            at = begins[which];
            begins[which] = begins[--count];
            uint64_t size = pool.blocks[pleat__remat_pool_at(&pool, at)].bytes;
            pleat__remat_pool_give(&pool, at);
            paint(at, size, PLEAT__REMAT_FREE);
        }
        check_pool(&pool);
    }
}

/* ---- table ---- */

static uint64_t own[TENSORS];
static bool linked[TENSORS][TENSORS], gone[TENSORS];
static uint32_t set_of[TENSORS]; /* sets only join; a tensor that came back has left its own */
static uint64_t sums[TENSORS * 64];

static uint64_t naive_projected(uint32_t tensor)
{
    uint64_t ns = own[tensor];
    bool met[TENSORS * 64] = {false};
    for (uint32_t t = 0; t < TENSORS; t++) {
        if (!linked[tensor][t] || !gone[t] || met[set_of[t]])
            continue;
        met[set_of[t]] = true;
        ns += sums[set_of[t]];
    }
    return ns;
}

static void naive_evict(uint32_t tensor, uint32_t set)
{
    gone[tensor] = true;
    set_of[tensor] = set;
    sums[set] = own[tensor];
    for (uint32_t t = 0; t < TENSORS; t++) {
        uint32_t old = set_of[t];
        if (!linked[tensor][t] || !gone[t] || old == set)
            continue;
        sums[set] += sums[old];
        for (uint32_t u = 0; u < TENSORS; u++)
            set_of[u] = gone[u] && set_of[u] == old ? set : set_of[u];
    }
}

static void remat_table_agrees_with_sets_by_hand(void **state)
{
    (void)state;
    test_random random = test_random_begin("table", 0x26);
    pleat__remat_table table;
    uint32_t sets = 0;
    memset(linked, 0, sizeof linked);
    memset(gone, 0, sizeof gone);
    assert_ok(pleat__remat_table_create(arena, TENSORS, &table));
    for (uint32_t t = 0; t < TENSORS; t++) {
        assert_int_equal(pleat__remat_add(&table, 512), t);
        own[t] = 1 + test_random_below(&random, 1000);
        pleat__remat_cost(&table, t, own[t]);
        for (uint32_t other = t > 3 ? t - 3 : 0; other < t; other++) {
            linked[t][other] = linked[other][t] = true;
            assert_ok(pleat__remat_link(&table, other, t));
        }
        pleat__remat_made(&table, t);
    }
    for (uint32_t step = 0; step < 1000; step++) {
        uint32_t t = (uint32_t)test_random_below(&random, TENSORS);
        if (gone[t]) {
            gone[t] = false;
            sums[set_of[t]] -= own[t];
            pleat__remat_made(&table, t);
        } else {
            naive_evict(t, sets++ % (TENSORS * 64));
            assert_ok(pleat__remat_evicted(&table, t));
        }
        for (uint32_t u = 0; u < TENSORS; u++) {
            assert_int_equal(pleat__remat_is_there(&table, u), !gone[u]);
            if (!gone[u])
                assert_int_equal(table.hot[u].projected_ns, naive_projected(u));
        }
    }
}

/* Thousands of tensors are computed from two, one of which is gone: so each of them that goes joins
 * the same set, around which the other one is told once, not once for each member. */
static void remat_table_tells_a_neighbour_of_many_once(void **state)
{
    (void)state;
    enum { RESULTS = 3000 };
    pleat__remat_table table;
    assert_ok(pleat__remat_table_create(arena, RESULTS + 2, &table));
    for (uint32_t t = 0; t < RESULTS + 2; t++) {
        assert_int_equal(pleat__remat_add(&table, 512), t);
        pleat__remat_cost(&table, t, 1);
        for (uint32_t from = 0; from < 2 && t >= 2; from++)
            assert_ok(pleat__remat_link(&table, from, t));
        pleat__remat_made(&table, t);
    }
    clock_t began = clock();
    assert_ok(pleat__remat_evicted(&table, 0));
    for (uint32_t t = 2; t < RESULTS + 2; t++)
        assert_ok(pleat__remat_evicted(&table, t));
    assert_int_equal(table.hot[1].projected_ns, RESULTS + 2);
    assert_true(clock() - began < 3 * CLOCKS_PER_SEC);
}

/* ---- searches ---- */

/* A pool full of tensors of random sizes, some held, some gone. */
static void fill(test_random *random, pleat__remat_table *table, pleat__remat_pool *pool)
{
    assert_ok(pleat__remat_table_create(arena, TENSORS, table));
    assert_ok(pleat__remat_pool_create(arena, GRANULES * 512, 16 * 512, pool));
    uint64_t begins[TENSORS] = {0};
    uint32_t count = 0;
    while (count < TENSORS) {
        uint64_t bytes = (1 + test_random_below(random, 48)) * 512;
        size_t block = pleat__remat_pool_find(pool, bytes);
        if (block == pool->count)
            break;
        uint32_t t = pleat__remat_add(table, bytes);
        pleat__remat_cost(table, t, test_random_below(random, 1000));
        pleat__remat_made(table, t);
        table->hot[t].used_ns = test_random_below(random, 1000);
        assert_ok(pleat__remat_pool_take(pool, block, bytes, false, t, &begins[count++]));
    }
    for (uint32_t t = 0; t < count; t++) {
        if (test_random_below(random, 6) == 0)
            pleat__remat_hold(table, t);
        else if (test_random_below(random, 5) == 0) {
            assert_ok(pleat__remat_evicted(table, t));
            pleat__remat_pool_give(pool, begins[t]);
        }
    }
}

/* The cheapest of all runs that are long enough, tried one by one. */
static uint64_t naive_window(const pleat__remat_table *table, const pleat__remat_pool *pool,
                             uint64_t bytes, uint64_t now)
{
    uint64_t best = UINT64_MAX;
    for (size_t first = 0; first < pool->count; first++) {
        uint64_t size = 0, weight = 0;
        for (size_t i = first; i < pool->count; i++) {
            uint32_t owner = pool->blocks[i].owner;
            if (owner != PLEAT__REMAT_FREE && table->hot[owner].held > 0)
                break;
            weight += owner == PLEAT__REMAT_FREE ? 0 : pleat__remat_weight(&table->hot[owner], now);
            size += pool->blocks[i].bytes;
            if (size >= bytes && weight < best)
                best = weight;
        }
    }
    return best;
}

static void remat_window_is_the_cheapest_of_all(void **state)
{
    (void)state;
    test_random random = test_random_begin("window", 0x27);
    for (uint32_t round = 0; round < 500; round++) {
        pleat__remat_table table;
        pleat__remat_pool pool;
        uint32_t tensors[TENSORS];
        pleat__remat_victims victims = {.tensors = tensors};
        fill(&random, &table, &pool);
        pleat__remat_need need = {.bytes = (1 + test_random_below(&random, 200)) * 512,
                                  .now_ns = 1000};
        uint64_t found = pleat__remat_search_window(&table, &pool, &need, &victims);
        assert_true(found == naive_window(&table, &pool, need.bytes, need.now_ns));
        uint64_t sum = 0;
        for (uint32_t v = 0; v < victims.count; v++) {
            assert_int_equal(table.hot[tensors[v]].held, 0);
            sum += pleat__remat_weight(&table.hot[tensors[v]], need.now_ns);
        }
        if (victims.count > 0)
            assert_true(sum == found);
    }
}

/* Bytes of whole chunks that are free once the victims are gone, and whether all are needed. */
static uint64_t free_chunks_without(const pleat__remat_pool *pool, const uint32_t *victims,
                                    uint32_t count)
{
    uint64_t found = 0;
    for (uint64_t c = 0; c < pool->chunks; c++) {
        bool taken = false;
        for (size_t i = 0; i < pool->count; i++) {
            const pleat__remat_block *b = &pool->blocks[i];
            bool goes = b->owner == PLEAT__REMAT_FREE;
            for (uint32_t v = 0; v < count; v++)
                goes = goes || victims[v] == b->owner;
            pleat__range chunk = {c * pool->chunk_bytes, (c + 1) * pool->chunk_bytes};
            pleat__range block = {b->begin, b->begin + b->bytes};
            taken = taken || (!goes && pleat__range_overlaps(chunk, block));
        }
        found += !taken;
    }
    return found;
}

static void remat_chunks_free_what_is_asked_and_no_more(void **state)
{
    (void)state;
    test_random random = test_random_begin("chunks", 0x28);
    uint32_t chosen = 0;
    for (uint32_t round = 0; round < 500; round++) {
        pleat__remat_table table;
        pleat__remat_pool pool;
        pleat__remat_scratch scratch;
        uint32_t tensors[TENSORS], fewer[TENSORS];
        pleat__remat_victims victims = {.tensors = tensors};
        fill(&random, &table, &pool);
        assert_ok(pleat__remat_scratch_create(arena, TENSORS, pool.chunks, &scratch));
        uint64_t wanted = 2 + test_random_below(&random, 12);
        pleat__remat_need need = {.bytes = wanted * pool.chunk_bytes, .now_ns = 1000};
        if (pleat__remat_pool_find(&pool, need.bytes) < pool.count)
            continue; /* nobody searches */
        pleat__remat_search_chunks(&table, &pool, &need, &scratch, &victims);
        uint64_t window = naive_window(&table, &pool, need.bytes, need.now_ns), weight = 0;
        for (uint32_t v = 0; v < victims.count; v++)
            weight += pleat__remat_weight(&table.hot[tensors[v]], need.now_ns);
        assert_true(victims.count == 0 || weight <= window);
        if (victims.count == 0 || weight == window)
            continue;
        chosen++;
        assert_true(free_chunks_without(&pool, tensors, victims.count) >= wanted);
        for (uint32_t left_out = 0; left_out < victims.count; left_out++) {
            uint32_t count = 0;
            for (uint32_t v = 0; v < victims.count; v++) {
                if (v != left_out)
                    fewer[count++] = tensors[v];
            }
            assert_true(free_chunks_without(&pool, fewer, count) < wanted);
        }
    }
    assert_true(chosen > 20);
}

/* ---- logs ---- */

#define START "{\"INSTRUCTION\":\"ANNOTATE\",\"ANNOTATION\":\"START\"}\n"
#define CALL(out, in, time, size)                                                                  \
    "{\"INSTRUCTION\":\"CALL\",\"NAME\":\"op\",\"ARGS\":[" in "],\"RESULT\":[\"" out               \
    "\"],\"TIME\":\"" time "\"}\n"                                                                 \
    "{\"INSTRUCTION\":\"MEMORY\",\"NAME\":\"" out "\",\"MEMORY\":\"" size "\"}\n"                  \
    "{\"INSTRUCTION\":\"ALIAS\",\"NAME\":\"" out "\",\"ALIAS\":\"-1\"}\n"
#define RELEASE(name) "{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"" name "\"}\n"

static pleat_result decode(const char *text, pleat__operator_log *log)
{
    return pleat__operator_log_decode("made up", (const uint8_t *)text, strlen(text), arena, log);
}

static void remat_log_refuses_what_is_wrong(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "\n\n",
        "{",
        "[]",
        START,
        CALL("a", "", "1", "1"),
        START "{\"INSTRUCTION\":\"JUMP\"}",
        START "{\"INSTRUCTION\":\"CALL\"}",
        START "{\"INSTRUCTION\":\"CALL\",\"NAME\":\"f\",\"ARGS\":[],\"RESULT\":[],\"TIME\":\"1\"}",
        START
        "{\"INSTRUCTION\":\"CALL\",\"NAME\":\"f\",\"ARGS\":[],\"RESULT\":[\"a\"],\"TIME\":\"1\"}",
        START CALL("a", "", "-1", "1"),
        START CALL("a", "", "1.5", "1"),
        START CALL("a", "", "1", "999999999999999999999"),
        START CALL("a", "", "1", "1") "trailing",
        START "{\"INSTRUCTION\":\"CONSTANT\",\"NAME\":\"a\"}",
        START "{\"INSTRUCTION\":\"COPY\",\"DST\":\"a\"}",
        START "{\"INSTRUCTION\":\"MUTATE\",\"NAME\":\"f\",\"ARGS\":[\"a\"],\"MUTATE\":[1],\"TIME\":"
              "\"1\"}",
        START "{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"a\",\"NAME\":\"b\"}",
        START "{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"a}",
        START "{\"INSTRUCTION\":\"RELEASE\",\"NAME\":{\"a\":1}}",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        pleat__operator_log log;
        assert_result(decode(wrong[i], &log), PLEAT_E_INPUT);
        assert_non_null(strstr(pleat_last_error()->text, "made up"));
    }
}

/* An operator of so many arguments and results, all of one tensor: each pair is linked in a run. */
static void remat_log_bounds_what_is_linked(void **state)
{
    (void)state;
    const uint32_t many = 4097; /* of both: more than 2^24 pairs */
    size_t used = 0, size = 16 * many + 4096;
    char *text = pleat__arena_alloc(arena, size);
    pleat__operator_log log;
    assert_non_null(text);
    used += (size_t)snprintf(text, size,
                             "%s%s{\"INSTRUCTION\":\"MUTATE\",\"NAME\":\"f\","
                             "\"TIME\":\"1\",\"ARGS\":[\"a\"",
                             START, CALL("a", "", "1", "512"));
    for (uint32_t i = 1; i < many; i++)
        used += (size_t)snprintf(text + used, size - used, ",\"a\"");
    used += (size_t)snprintf(text + used, size - used, "],\"MUTATE\":[0");
    for (uint32_t i = 1; i < many; i++)
        used += (size_t)snprintf(text + used, size - used, ",0");
    snprintf(text + used, size - used, "]}\n");
    assert_result(decode(text, &log), PLEAT_E_INPUT);
    assert_non_null(
        strstr(pleat_last_error()->text, "'made up': line 5: more than 16777216 pairs"));
}

/* Two bytes each of a file, and 16 of host memory. */
static void remat_log_bounds_the_values_of_a_line(void **state)
{
    (void)state;
    static const char begin[] = START "{\"X\":[";
    const size_t values = PLEAT__OPERATOR_VALUES_MOST + 1;
    char *text = pleat__arena_alloc(arena, sizeof begin + 2 * values + 8);
    pleat__operator_log log;
    assert_non_null(text);
    memcpy(text, begin, sizeof begin);
    for (size_t i = 0; i < values; i++)
        memcpy(text + sizeof begin - 1 + 2 * i, i + 1 < values ? "1," : "1]", 2);
    strcpy(text + sizeof begin - 1 + 2 * values, "}\n");
    assert_result(decode(text, &log), PLEAT_E_INPUT);
    assert_non_null(
        strstr(pleat_last_error()->text, "'made up': line 2: more than 4194304 values"));
}

/* A run that takes a thousand times as long would be counted modulo 2^64. */
static void remat_log_bounds_its_time(void **state)
{
    (void)state;
    const uint32_t most = 16; /* operators of 2^48 ns */
    size_t used = 0, size = 512 * most + 4096;
    char *text = pleat__arena_alloc(arena, size);
    pleat__operator_log log;
    assert_non_null(text);
    used += (size_t)snprintf(text, size, "%s", START);
    for (uint32_t i = 0; i < most; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 CALL("a", "", "281474976710656", "512"), RELEASE("a"));
    assert_ok(decode(text, &log));
    assert_int_equal(log.model_ns, PLEAT__OPERATORS_NS_MOST);
    snprintf(text + used, size - used, "%s", CALL("a", "", "1", "512"));
    assert_result(decode(text, &log), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "the operators take longer than"));
}

static pleat_result run_text(const char *text, pleat__remat_policy policy, uint64_t budget,
                             pleat__remat_figures *figures)
{
    pleat__operator_log log;
    pleat__remat_options best, options = {.policy = policy,
                                          .budget_bytes = budget,
                                          .chunk_bytes = 2u << 20,
                                          .map_ns = 1,
                                          .overhead_most = 10};
    assert_ok(decode(text, &log));
    return pleat__remat_rehearse(&log, &options, &best, figures);
}

static void remat_run_refuses_logs_that_contradict_themselves(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        START CALL("a", "\"b\"", "1", "512"),
        START CALL("a", "", "1", "512") CALL("a", "", "1", "512"),
        START CALL("a", "", "1", "512") RELEASE("a") CALL("b", "\"a\"", "1", "512"),
        START CALL("a", "", "1", "512") "{\"INSTRUCTION\":\"COPY\",\"DST\":\"a\",\"SRC\":\"a\"}",
        START CALL("a", "", "1", "512") "{\"INSTRUCTION\":\"COPY\",\"DST\":\"c\",\"SRC\":\"b\"}",
    };
    pleat__remat_figures figures;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_result(run_text(wrong[i], PLEAT__REMAT_COOP, 1u << 20, &figures), PLEAT_E_INPUT);
}

/* a -> b -> c -> d, then a and c again: within three places of the four `a` goes, being the
 * stalest, and comes back for `e`. */
static const char chain[] = START CALL("a", "", "100", "1024") CALL("b", "\"a\"", "10", "1024")
    CALL("c", "\"b\"", "10", "1024") RELEASE("b") CALL("d", "\"c\"", "10", "1024")
        CALL("e", "\"d\",\"c\"", "10", "1024") RELEASE("c") RELEASE("d")
            CALL("f", "\"a\",\"e\"", "10", "1024") RELEASE("e") RELEASE("a");

static void remat_run_computes_again_what_it_evicted(void **state)
{
    (void)state;
    for (int p = 0; p < PLEAT__REMAT_POLICIES; p++) {
        pleat__remat_figures f;
        assert_ok(run_text(chain, (pleat__remat_policy)p, 4096, &f));
        assert_true(f.finished);
        assert_int_equal(f.evictions, 0);
        assert_true(f.overhead == 1);
        assert_int_equal(f.peak_bytes, 4096);
        assert_ok(run_text(chain, (pleat__remat_policy)p, 3072, &f));
        assert_true(f.finished);
        assert_int_equal(f.evictions, 1);
        assert_int_equal(f.recomputations, 1);
        assert_int_equal(f.again_ns, 100);
        assert_int_equal(f.model_ns, 150);
        assert_true(f.overhead == 250.0 / 150);
        assert_int_equal(f.peak_bytes, 3072);
        assert_ok(run_text(chain, (pleat__remat_policy)p, 2048, &f));
        assert_false(f.finished);
        assert_true(f.out_of_memory);
    }
}

/* The whole chain was dropped as it went; its last tensor goes for `z`, and comes back by all of
 * it.
 */
static void remat_run_goes_down_long_chains(void **state)
{
    (void)state;
    const uint32_t length = 3000;
    size_t used = 0, size = length * 400 + 4096;
    char *text = pleat__arena_alloc(arena, size);
    assert_non_null(text);
    used += (size_t)snprintf(text, size, "%s%s", START, CALL("a0", "", "1", "512"));
    for (uint32_t i = 1; i < length; i++)
        used += (size_t)snprintf(
            text + used, size - used,
            "{\"INSTRUCTION\":\"CALL\",\"NAME\":\"op\",\"ARGS\":[\"a%u\"],\"RESULT\":[\"a%u\"],"
            "\"TIME\":\"1\"}\n{\"INSTRUCTION\":\"MEMORY\",\"NAME\":\"a%u\",\"MEMORY\":\"512\"}\n"
            "{\"INSTRUCTION\":\"ALIAS\",\"NAME\":\"a%u\",\"ALIAS\":\"-1\"}\n"
            "{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"a%u\"}\n",
            i - 1, i, i, i, i - 1);
    snprintf(text + used, size - used, "%s%s%s", CALL("z", "", "1", "1024"), RELEASE("z"),
             CALL("end", "\"a2999\"", "1", "512"));
    for (int p = 0; p < PLEAT__REMAT_POLICIES; p++) {
        pleat__remat_figures f;
        assert_ok(run_text(text, (pleat__remat_policy)p, 1024, &f));
        assert_true(f.finished);
        assert_int_equal(f.recomputations, length);
    }
}

/* Of what no device has a peak would be a figure that means nothing. */
static void remat_peak_refuses_more_than_can_be_counted(void **state)
{
    (void)state;
    const uint32_t constants = (1u << 15) + 1; /* of 2^48 bytes */
    size_t used = 0, size = constants * 128ull + 4096;
    char *text = pleat__arena_alloc(arena, size);
    pleat__operator_log log;
    uint64_t bytes;
    assert_non_null(text);
    used += (size_t)snprintf(text, size, "%s", START);
    for (uint32_t i = 0; i < constants; i++)
        used += (size_t)snprintf(
            text + used, size - used,
            "{\"INSTRUCTION\":\"CONSTANT\",\"NAME\":\"c%u\"}\n{\"INSTRUCTION\":\"MEMORY\","
            "\"NAME\":\"c%u\",\"MEMORY\":\"281474976710656\"}\n",
            i, i);
    snprintf(text + used, size - used, "%s", CALL("a", "\"c0\"", "1", "512"));
    assert_ok(decode(text, &log));
    assert_result(pleat__remat_peak(&log, &bytes), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "'made up': more than 2^63 bytes"));
}

/* A mutation by Coop's way takes no memory of its own, and what it wrote over is gone. */
static void remat_run_mutates_in_place(void **state)
{
    (void)state;
    static const char text[] = START CALL("a", "", "100", "1024")
        CALL("b", "\"a\"", "10", "512") "{\"INSTRUCTION\":\"MUTATE\",\"NAME\":\"relu_\","
                                        "\"ARGS\":[\"a\"],\"MUTATE\":[0],\"TIME\":\"5\"}\n" CALL(
                                            "c", "\"a\",\"b\"", "10", "512");
    pleat__remat_figures f;
    assert_ok(run_text(text, PLEAT__REMAT_COOP, 2048, &f));
    assert_true(f.finished);
    assert_int_equal(f.recomputations, 0);
    assert_int_equal(f.peak_bytes, 2048);
    assert_ok(run_text(text, PLEAT__REMAT_DTR, 2560, &f));
    assert_true(f.finished);
    assert_int_equal(f.peak_bytes, 2560);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(remat_pool_agrees_with_a_map_of_granules, begin, end),
        cmocka_unit_test_setup_teardown(remat_table_agrees_with_sets_by_hand, begin, end),
        cmocka_unit_test_setup_teardown(remat_window_is_the_cheapest_of_all, begin, end),
        cmocka_unit_test_setup_teardown(remat_chunks_free_what_is_asked_and_no_more, begin, end),
        cmocka_unit_test_setup_teardown(remat_log_refuses_what_is_wrong, begin, end),
        cmocka_unit_test_setup_teardown(remat_log_bounds_what_is_linked, begin, end),
        cmocka_unit_test_setup_teardown(remat_log_bounds_the_values_of_a_line, begin, end),
        cmocka_unit_test_setup_teardown(remat_log_bounds_its_time, begin, end),
        cmocka_unit_test_setup_teardown(remat_run_refuses_logs_that_contradict_themselves, begin,
                                        end),
        cmocka_unit_test_setup_teardown(remat_table_tells_a_neighbour_of_many_once, begin, end),
        cmocka_unit_test_setup_teardown(remat_run_computes_again_what_it_evicted, begin, end),
        cmocka_unit_test_setup_teardown(remat_run_goes_down_long_chains, begin, end),
        cmocka_unit_test_setup_teardown(remat_run_mutates_in_place, begin, end),
        cmocka_unit_test_setup_teardown(remat_peak_refuses_more_than_can_be_counted, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
