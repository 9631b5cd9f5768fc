/*
 * explain_budget.c: see explain_budget.h.
 */
#include <tools/cmd/explain_budget.h>

#include <tools/cli.h>
#include <tools/json.h>

#include <internal/error.h>
#include <stdio.h>

static uint64_t least_bytes(const recompute *r)
{
    return r->rungs[r->last_rung].physical_bytes;
}

static void print_change(json_writer *json, const recompute *r, const recompute_rung *rung)
{
    const recompute_block *block = &r->blocks[rung->block];
    json_uint(json, "block", block->number);
    json_string(json, "way", recompute_way_names[rung->way]);
    if (rung->way == RECOMPUTE_OFFLOAD)
        json_uint(json, "until", r->blocks[block->until].number);
}

static void print_peaks(json_writer *json, const recompute *r)
{
    json_array(json, "peaks");
    for (int i = 0; i < RECOMPUTE_PEAKS; i++) {
        json_object(json, NULL);
        json_uint(json, "lasting_bytes", r->peaks[i].lasting_bytes);
        json_uint(json, "passing_bytes", r->peaks[i].passing_bytes);
        json_end_object(json);
    }
    json_end_array(json);
}

static void print_json(const recompute *r, uint64_t budget, uint32_t rung)
{
    json_writer json;
    bool fits = rung <= r->last_rung;
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
    json_uint(&json, "earlier_bytes", r->earlier_bytes);
    json_bool(&json, "timed", r->forward_ns != 0);
    json_array(&json, "blocks");
    for (uint32_t b = 0; b < r->block_count; b++) {
        json_object(&json, NULL);
        json_uint(&json, "number", r->blocks[b].number);
        json_uint(&json, "passes", r->blocks[b].passes);
        json_uint(&json, "saved_bytes", r->blocks[b].saved_bytes);
        json_uint(&json, "attention_bytes", r->blocks[b].attention_bytes);
        json_uint(&json, "ns", r->blocks[b].ns);
        json_uint(&json, "attention_ns", r->blocks[b].attention_ns);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_array(&json, "rungs");
    for (uint32_t i = 0; i <= r->last_rung; i++) {
        json_object(&json, NULL);
        if (i > 0)
            print_change(&json, r, &r->rungs[i]);
        json_uint(&json, "live_bytes", r->rungs[i].live_bytes);
        if (r->rungs[i].physical_bytes != 0)
            json_uint(&json, "physical_bytes", r->rungs[i].physical_bytes);
        json_uint(&json, "ns", r->rungs[i].ns);
        json_end_object(&json);
    }
    json_end_array(&json);
    print_peaks(&json, r);
    json_end_object(&json);
    json_finish(&json);
}

/* How many blocks go a way; their numbers, where `said` has something to say before them. */
static uint32_t say_blocks(const recompute *r, const recompute_way *ways, recompute_way way,
                           const char *said)
{
    uint32_t count = 0;
    for (uint32_t b = r->block_count; b-- > 0;) {
        if (ways[b] != way)
            continue;
        if (said != NULL)
            printf("%s%u", count > 0 ? ", " : said, r->blocks[b].number);
        count++;
    }
    if (said != NULL && count > 0)
        putchar('\n');
    return count;
}

static void say_ways(const recompute *r, uint64_t budget, uint32_t rung)
{
    char within[48], takes[48];
    recompute_way ways[RECOMPUTE_BLOCKS_MOST];
    recompute_ways(r, rung, ways);
    cli_format_size(budget, within, sizeof within);
    cli_format_size(r->rungs[rung].physical_bytes, takes, sizeof takes);
    uint32_t attention = say_blocks(r, ways, RECOMPUTE_ATTENTION, NULL);
    uint32_t offloaded = say_blocks(r, ways, RECOMPUTE_OFFLOAD, NULL);
    printf("In %s: %u of %u blocks are computed again", within,
           say_blocks(r, ways, RECOMPUTE_AGAIN, NULL), r->block_count);
    if (attention > 0)
        printf(", %u all but attention", attention);
    if (offloaded > 0)
        printf(", %u offloaded", offloaded);
    printf(", and a plan takes %s.", takes);
    if (r->forward_ns != 0)
        printf(" That costs %.2f ms an iteration of %.2f ms for all of them.",
               (double)r->rungs[rung].ns / 1e6, (double)r->forward_ns / 1e6);
    putchar('\n');
    say_blocks(r, ways, RECOMPUTE_AGAIN, "Computed again: ");
    say_blocks(r, ways, RECOMPUTE_ATTENTION, "All but attention: ");
    say_blocks(r, ways, RECOMPUTE_OFFLOAD, "Offloaded: ");
}

static void say_choice(const recompute *r, uint64_t budget, uint32_t rung)
{
    char within[48], takes[48], all[48], none[48];
    cli_format_size(budget, within, sizeof within);
    cli_format_size(r->rungs[0].live_bytes, all, sizeof all);
    cli_format_size(r->rungs[r->last_rung].live_bytes, none, sizeof none);
    printf("%u blocks: %s are live at most with nothing computed again, %s with all of them.\n",
           r->block_count, all, none);
    if (r->earlier_bytes > r->rungs[r->last_rung].live_bytes)
        printf("An iteration before it would have %s live now, with all of them.\n",
               cli_format_size(r->earlier_bytes, takes, sizeof takes));
    if (rung > r->last_rung) {
        printf(
            "No choice fits in %s: with all of them computed again a plan takes %s, the least.\n",
            within, cli_format_size(least_bytes(r), takes, sizeof takes));
        return;
    }
    if (rung == 0)
        printf("All of it fits in %s: a plan takes %s with nothing computed again.\n", within,
               cli_format_size(r->rungs[0].physical_bytes, takes, sizeof takes));
    else
        say_ways(r, budget, rung);
}

int explain_budget(const pleat_trace *trace, uint32_t device, const budget_question *asked)
{
    uint32_t rung;
    recompute r;
    pleat_result result = recompute_begin(trace, device, &asked->times, &r);
    if (result == PLEAT_OK) {
        result = recompute_choose(&r, asked->bytes, &rung);
        if (result == PLEAT_OK && asked->json)
            print_json(&r, asked->bytes, rung);
        else if (result == PLEAT_OK)
            say_choice(&r, asked->bytes, rung);
        bool fits = result == PLEAT_OK && rung <= r.last_rung;
        recompute_end(&r);
        if (result == PLEAT_OK)
            return fits ? CLI_DONE : CLI_NO;
    }
    char why[512];
    snprintf(why, sizeof why, "%s", pleat_last_error()->text);
    return cli_failed("explain", pleat__fail(result, "'%s': %s", asked->path, why));
}
