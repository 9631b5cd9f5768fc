/*
 * explain_budget.c: see explain_budget.h.
 */
#include <tools/cmd/explain_budget.h>

#include <tools/analysis/recompute.h>
#include <tools/cli.h>
#include <tools/json.h>

#include <stdlib.h>

#define TIMES_MOST 4096
#define NS_MOST    (1ull << 48) /* three days */

/* false where the text is no list of numbers. */
static bool read_times(const char *text, uint64_t *times, uint32_t *count)
{
    for (*count = 0; *text != '\0' && *count < TIMES_MOST;) {
        char *end;
        unsigned long long value = strtoull(text, &end, 10);
        bool number = end != text && *text >= '0' && *text <= '9' && value <= NS_MOST;
        if (!number || (*end != ',' && *end != '\0'))
            return false;
        times[(*count)++] = value;
        text = *end == ',' ? end + 1 : end;
    }
    return *text == '\0';
}

static uint64_t least_bytes(const recompute *r)
{
    return r->rungs[r->block_count].physical_bytes;
}

static void print_json(const recompute *r, uint64_t budget, uint32_t rung)
{
    json_writer json;
    bool fits = rung <= r->block_count;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_uint(&json, "budget_bytes", budget);
    json_bool(&json, "fits", fits);
    if (fits)
        json_uint(&json, "rung", rung);
    else
        json_uint(&json, "smallest_bytes", least_bytes(r));
    json_uint(&json, "persistent_bytes", r->persistent_bytes);
    json_uint(&json, "lasting_bytes", r->lasting_bytes);
    json_bool(&json, "timed", r->forward_ns != 0);
    json_array(&json, "blocks");
    for (uint32_t b = 0; b < r->block_count; b++) {
        json_object(&json, NULL);
        json_uint(&json, "number", r->blocks[b].number);
        json_uint(&json, "passes", r->blocks[b].passes);
        json_uint(&json, "saved_bytes", r->blocks[b].saved_bytes);
        json_uint(&json, "ns", r->blocks[b].ns);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_array(&json, "rungs");
    for (uint32_t i = 0; i <= r->block_count; i++) {
        json_object(&json, NULL);
        if (i > 0)
            json_uint(&json, "recompute", r->blocks[r->rungs[i].block].number);
        json_uint(&json, "live_bytes", r->rungs[i].live_bytes);
        if (r->rungs[i].physical_bytes != 0)
            json_uint(&json, "physical_bytes", r->rungs[i].physical_bytes);
        json_uint(&json, "ns", r->rungs[i].ns);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_end_object(&json);
    json_finish(&json);
}

static void say_blocks(const recompute *r, uint32_t rung)
{
    for (uint32_t i = 1; i <= rung; i++)
        printf("%s%u", i > 1 ? ", " : "", r->blocks[r->rungs[i].block].number);
    printf("\n");
}

static void say_choice(const recompute *r, uint64_t budget, uint32_t rung)
{
    char within[48], takes[48], all[48], none[48];
    cli_format_size(budget, within, sizeof within);
    cli_format_size(r->rungs[0].live_bytes, all, sizeof all);
    cli_format_size(r->rungs[r->block_count].live_bytes, none, sizeof none);
    printf("%u blocks: %s are live at most with nothing computed again, %s with all of them.\n",
           r->block_count, all, none);
    if (rung > r->block_count) {
        printf(
            "No choice fits in %s: with all of them computed again a plan takes %s, the least.\n",
            within, cli_format_size(least_bytes(r), takes, sizeof takes));
        return;
    }
    cli_format_size(r->rungs[rung].physical_bytes, takes, sizeof takes);
    if (rung == 0) {
        printf("All of it fits in %s: a plan takes %s with nothing computed again.\n", within,
               takes);
        return;
    }
    printf("In %s: %u of %u blocks are computed again, and a plan takes %s.", within, rung,
           r->block_count, takes);
    if (r->forward_ns != 0)
        printf(" That costs %.2f ms an iteration of %.2f ms for all of them.",
               (double)r->rungs[rung].ns / 1e6, (double)r->forward_ns / 1e6);
    printf("\nComputed again: ");
    say_blocks(r, rung);
}

int explain_budget(const pleat_trace *trace, uint32_t device, uint64_t budget_bytes,
                   const char *times_text, bool json)
{
    static uint64_t times[TIMES_MOST];
    uint32_t count = 0, rung;
    recompute r;
    if (times_text != NULL && !read_times(times_text, times, &count))
        return cli_bad_use("explain", "--block-ns: '%s' is no list of at most %d nanoseconds",
                           times_text, TIMES_MOST);
    pleat_result result =
        recompute_begin(trace, device, times_text != NULL ? times : NULL, count, &r);
    if (result == PLEAT_OK) {
        result = recompute_choose(&r, budget_bytes, &rung);
        if (result == PLEAT_OK && json)
            print_json(&r, budget_bytes, rung);
        else if (result == PLEAT_OK)
            say_choice(&r, budget_bytes, rung);
        bool fits = result == PLEAT_OK && rung <= r.block_count;
        recompute_end(&r);
        if (result == PLEAT_OK)
            return fits ? CLI_DONE : CLI_NO;
    }
    return cli_failed("explain", result);
}
