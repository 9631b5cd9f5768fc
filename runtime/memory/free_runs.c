/*
 * free_runs.c: the two treaps of free runs (see free_runs.h).
 */
#include <runtime/memory/free_runs.h>

#include <internal/check.h>
#include <internal/error.h>

enum { BY_PLACE = 0, BY_SIZE = 1 };

void pleat__free_runs_init(pleat__free_runs *runs, pleat__arena *arena)
{
    *runs = (pleat__free_runs){.arena = arena, .made = 1};
}

void pleat__free_runs_release(pleat__free_runs *runs)
{
    pleat__arena_free(runs->arena, runs->nodes);
    *runs = (pleat__free_runs){.arena = runs->arena, .made = 1};
}

pleat_result pleat__free_runs_grow(pleat__free_runs *runs, uint32_t nodes)
{
    while (runs->capacity < runs->made + nodes)
        PLEAT_TRY(pleat__arena_grow(runs->arena, &runs->nodes, &runs->capacity, runs->capacity,
                                    sizeof *runs->nodes));
    return PLEAT_OK;
}

static uint32_t node_new(pleat__free_runs *runs, pleat__run run)
{
    uint32_t node = runs->spare;
    if (node != 0) {
        runs->spare = runs->nodes[node].left[0];
    } else {
        PLEAT_CHECK(runs->made < runs->capacity);
        node = (uint32_t)runs->made++;
    }
    runs->nodes[node] = (pleat__free_run_node){.run = run};
    return node;
}

static inline uint32_t priority(uint32_t node)
{
    uint32_t h = node * 0x9e3779b1u;
    h ^= h >> 15;
    return h * 0x85ebca6bu;
}

static inline bool before(pleat__run a, pleat__run b, int tree)
{
    if (tree == BY_SIZE && a.count != b.count)
        return a.count < b.count;
    return a.begin < b.begin;
}

/* Splits a subtree into what is before `key` and what is not. */
static void split(pleat__free_runs *x, int tree, uint32_t node, pleat__run key, uint32_t *low,
                  uint32_t *high)
{
    while (node != 0) {
        pleat__free_run_node *n = &x->nodes[node];
        if (before(n->run, key, tree)) {
            *low = node;
            low = &n->right[tree];
            node = n->right[tree];
        } else {
            *high = node;
            high = &n->left[tree];
            node = n->left[tree];
        }
    }
    *low = 0;
    *high = 0;
}

static void link_in(pleat__free_runs *x, int tree, uint32_t node)
{
    pleat__run key = x->nodes[node].run;
    uint32_t *at = &x->root[tree];
    while (*at != 0 && priority(*at) >= priority(node))
        at = before(x->nodes[*at].run, key, tree) ? &x->nodes[*at].right[tree]
                                                  : &x->nodes[*at].left[tree];
    split(x, tree, *at, key, &x->nodes[node].left[tree], &x->nodes[node].right[tree]);
    *at = node;
}

static void link_out(pleat__free_runs *x, int tree, uint32_t node)
{
    pleat__run key = x->nodes[node].run;
    uint32_t *at = &x->root[tree];
    while (*at != node)
        at = before(x->nodes[*at].run, key, tree) ? &x->nodes[*at].right[tree]
                                                  : &x->nodes[*at].left[tree];
    uint32_t low = x->nodes[node].left[tree], high = x->nodes[node].right[tree];
    while (low != 0 && high != 0) {
        if (priority(low) >= priority(high)) {
            *at = low;
            at = &x->nodes[low].right[tree];
            low = *at;
        } else {
            *at = high;
            at = &x->nodes[high].left[tree];
            high = *at;
        }
    }
    *at = low != 0 ? low : high;
}

static void insert(pleat__free_runs *x, pleat__run run)
{
    uint32_t node = node_new(x, run);
    link_in(x, BY_PLACE, node);
    link_in(x, BY_SIZE, node);
    x->count++;
    x->granules += run.count;
}

static void drop(pleat__free_runs *x, uint32_t node)
{
    link_out(x, BY_PLACE, node);
    link_out(x, BY_SIZE, node);
    x->count--;
    x->granules -= x->nodes[node].run.count;
    x->nodes[node].left[0] = x->spare;
    x->spare = node;
}

/* The node with the highest begin at or before `granule`; 0 when there is none. */
static uint32_t floor_of(const pleat__free_runs *x, uint32_t granule)
{
    uint32_t best = 0;
    for (uint32_t node = x->root[BY_PLACE]; node != 0;) {
        const pleat__free_run_node *n = &x->nodes[node];
        if (n->run.begin <= granule) {
            best = node;
            node = n->right[BY_PLACE];
        } else {
            node = n->left[BY_PLACE];
        }
    }
    return best;
}

/* Changes a node's run for one that has the same place among its neighbours. */
static void resize(pleat__free_runs *x, uint32_t node, pleat__run run)
{
    link_out(x, BY_SIZE, node);
    x->granules += run.count;
    x->granules -= x->nodes[node].run.count;
    x->nodes[node].run = run;
    link_in(x, BY_SIZE, node);
}

void pleat__free_runs_add(pleat__free_runs *runs, pleat__run run, bool join_before, bool join_after)
{
    if (run.count == 0)
        return;
    const pleat__free_run_node *nodes = runs->nodes;
    /* What begins last at or before the end begins there, or else before the run. */
    uint32_t end = run.begin + run.count, at = floor_of(runs, end);
    bool meets = at != 0 && nodes[at].run.begin == end;
    uint32_t upper = meets && join_after ? at : 0, lower = meets ? 0 : at;
    if (meets && join_before && run.begin != 0)
        lower = floor_of(runs, run.begin - 1);
    if (lower != 0 &&
        (!join_before || nodes[lower].run.begin + nodes[lower].run.count != run.begin))
        lower = 0;
    if (lower != 0)
        run = (pleat__run){nodes[lower].run.begin, nodes[lower].run.count + run.count};
    if (upper != 0)
        run.count += nodes[upper].run.count;
    if (lower != 0 && upper != 0)
        drop(runs, upper);
    if (lower != 0 || upper != 0)
        resize(runs, lower != 0 ? lower : upper, run);
    else
        insert(runs, run);
}

bool pleat__free_runs_carve(pleat__free_runs *runs, pleat__run run)
{
    uint32_t node = floor_of(runs, run.begin);
    if (node == 0)
        return false;
    pleat__run old = runs->nodes[node].run;
    uint32_t end = run.begin + run.count, old_end = old.begin + old.count;
    if (old_end < end)
        return false;
    pleat__run low = {old.begin, run.begin - old.begin}, high = {end, old_end - end};
    if (low.count == 0 && high.count == 0) {
        drop(runs, node);
        return true;
    }
    resize(runs, node, low.count != 0 ? low : high);
    if (low.count != 0 && high.count != 0)
        insert(runs, high);
    return true;
}

/* The first run in order of size that is not before `key`. */
static pleat__run ceiling_of(const pleat__free_runs *x, pleat__run key)
{
    pleat__run best = {0, 0};
    for (uint32_t node = x->root[BY_SIZE]; node != 0;) {
        const pleat__free_run_node *n = &x->nodes[node];
        if (before(n->run, key, BY_SIZE)) {
            node = n->right[BY_SIZE];
        } else {
            best = n->run;
            node = n->left[BY_SIZE];
        }
    }
    return best;
}

pleat__run pleat__free_runs_best(const pleat__free_runs *runs, uint32_t count)
{
    return ceiling_of(runs, (pleat__run){0, count});
}

pleat__run pleat__free_runs_after(const pleat__free_runs *runs, pleat__run run)
{
    return ceiling_of(runs, (pleat__run){run.begin + 1, run.count});
}

pleat__run pleat__free_runs_at(const pleat__free_runs *runs, uint32_t granule)
{
    uint32_t node = floor_of(runs, granule);
    if (node == 0)
        return (pleat__run){0, 0};
    pleat__run run = runs->nodes[node].run;
    return granule - run.begin < run.count ? run : (pleat__run){0, 0};
}
