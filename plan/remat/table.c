/*
 * table.c: see table.h.
 *
 * SETS  Evicted tensors that are linked are one set: a union-find tree, whose root has the sum of
 *       their costs, and a ring of the members, over which a change of the sum is told to the
 *       tensors around. Each eviction has a node of its own in a tree: that of a tensor which came
 *       back stays, since others may lead through it.
 */
#include <plan/remat/table.h>

#include <internal/check.h>
#include <internal/error.h>

typedef enum { ABSENT, THERE, EVICTED } state;

typedef struct pleat__remat_cold {
    uint64_t own_ns;
    uint64_t left_ns;        /* its own cost as its set counts it */
    uint32_t node;           /* of its last eviction */
    uint32_t refreshed;      /* the last round of refresh() that had it */
    uint32_t next, previous; /* in its set's ring */
    uint32_t *linked;
    size_t linked_count, linked_room;
    state state;
} cold;

typedef struct pleat__remat_node {
    uint64_t sum_ns; /* of a root */
    uint32_t parent; /* itself at the root */
    uint32_t seen;   /* the last walk that met it */
} node;

pleat_result pleat__remat_table_create(pleat__arena *arena, uint32_t capacity,
                                       pleat__remat_table *table)
{
    *table = (pleat__remat_table){
        .arena = arena,
        .hot = pleat__arena_calloc(arena, capacity, sizeof(pleat__remat_hot)),
        .cold = pleat__arena_calloc(arena, capacity, sizeof(cold)),
        .capacity = capacity,
    };
    if (table->hot == NULL || table->cold == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of %u tensors", capacity);
    return PLEAT_OK;
}

uint32_t pleat__remat_add(pleat__remat_table *table, uint64_t bytes)
{
    PLEAT_CHECK(table->count < table->capacity);
    uint32_t tensor = table->count++;
    table->hot[tensor] = (pleat__remat_hot){.bytes = bytes, .held = 1};
    table->cold[tensor] = (cold){.next = tensor, .previous = tensor, .state = ABSENT};
    return tensor;
}

void pleat__remat_cost(pleat__remat_table *table, uint32_t tensor, uint64_t ns)
{
    table->cold[tensor].own_ns += ns;
    table->hot[tensor].projected_ns += ns;
}

static pleat_result link_one(pleat__remat_table *table, uint32_t from, uint32_t to)
{
    cold *c = &table->cold[from];
    if (c->linked_count > 0 && c->linked[c->linked_count - 1] == to)
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_grow(table->arena, &c->linked, &c->linked_room, c->linked_count,
                                sizeof *c->linked));
    c->linked[c->linked_count++] = to;
    return PLEAT_OK;
}

pleat_result pleat__remat_link(pleat__remat_table *table, uint32_t a, uint32_t b)
{
    if (a == b)
        return PLEAT_OK;
    PLEAT_TRY(link_one(table, a, b));
    return link_one(table, b, a);
}

bool pleat__remat_is_there(const pleat__remat_table *table, uint32_t tensor)
{
    return table->cold[tensor].state == THERE;
}

static uint32_t root_of(pleat__remat_table *table, uint32_t tensor)
{
    node *nodes = table->nodes;
    uint32_t at = table->cold[tensor].node, root = at;
    while (nodes[root].parent != root)
        root = nodes[root].parent;
    while (nodes[at].parent != root) {
        uint32_t above = nodes[at].parent;
        nodes[at].parent = root;
        at = above;
    }
    return root;
}

static uint64_t projected(pleat__remat_table *table, uint32_t tensor)
{
    const cold *c = &table->cold[tensor];
    uint64_t ns = c->own_ns;
    table->stamp++;
    for (size_t i = 0; i < c->linked_count; i++) {
        if (table->cold[c->linked[i]].state != EVICTED)
            continue;
        uint32_t root = root_of(table, c->linked[i]);
        if (table->nodes[root].seen != table->stamp)
            ns += table->nodes[root].sum_ns;
        table->nodes[root].seen = table->stamp;
    }
    return ns;
}

/* Those that are there around one tensor have their cost anew, once a round. */
static void refresh_around(pleat__remat_table *table, uint32_t tensor)
{
    const cold *c = &table->cold[tensor];
    for (size_t i = 0; i < c->linked_count; i++) {
        uint32_t other = c->linked[i];
        if (table->cold[other].state != THERE || table->cold[other].refreshed == table->round)
            continue;
        table->cold[other].refreshed = table->round;
        table->hot[other].projected_ns = projected(table, other);
    }
}

/* Those around a whole set, of which `member` is one: many members may have the same one around
 * them, which may have as many. */
static void refresh(pleat__remat_table *table, uint32_t member)
{
    uint32_t at = member;
    table->round++;
    do {
        refresh_around(table, at);
        at = table->cold[at].next;
    } while (at != member);
}

/* Two sets become one. */
static void join(pleat__remat_table *table, uint32_t a, uint32_t b)
{
    uint32_t from = root_of(table, a), to = root_of(table, b);
    if (from == to)
        return;
    table->nodes[from].parent = to;
    table->nodes[to].sum_ns += table->nodes[from].sum_ns;
    uint32_t after_a = table->cold[a].next, after_b = table->cold[b].next;
    table->cold[a].next = after_b;
    table->cold[after_b].previous = a;
    table->cold[b].next = after_a;
    table->cold[after_a].previous = b;
}

pleat_result pleat__remat_evicted(pleat__remat_table *table, uint32_t tensor)
{
    cold *c = &table->cold[tensor];
    PLEAT_CHECK(c->state == THERE && table->hot[tensor].held == 0);
    PLEAT_TRY(pleat__arena_grow(table->arena, &table->nodes, &table->node_room, table->node_count,
                                sizeof *table->nodes));
    c->state = EVICTED;
    c->left_ns = c->own_ns;
    c->node = (uint32_t)table->node_count++;
    table->nodes[c->node] = (node){.sum_ns = c->own_ns, .parent = c->node};
    table->hot[tensor].held = 1;
    for (size_t i = 0; i < c->linked_count; i++) {
        if (table->cold[c->linked[i]].state == EVICTED)
            join(table, c->linked[i], tensor);
    }
    refresh(table, tensor);
    return PLEAT_OK;
}

void pleat__remat_made(pleat__remat_table *table, uint32_t tensor)
{
    cold *c = &table->cold[tensor];
    PLEAT_CHECK(c->state != THERE && table->hot[tensor].held > 0);
    table->hot[tensor].held--;
    if (c->state == EVICTED) {
        uint32_t next = c->next;
        table->nodes[root_of(table, tensor)].sum_ns -= c->left_ns;
        table->cold[c->next].previous = c->previous;
        table->cold[c->previous].next = c->next;
        c->next = c->previous = tensor;
        c->state = THERE;
        table->round++;
        if (next != tensor)
            refresh(table, next);
        refresh_around(table, tensor);
    }
    c->state = THERE;
    table->hot[tensor].projected_ns = projected(table, tensor);
}
