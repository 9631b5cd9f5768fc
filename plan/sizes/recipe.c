/*
 * recipe.c: recipes in memory and in plan files.
 *
 * FORMAT   Behind the tables of a plan file of version 7 (format.c), as tables of their own:
 *
 *   numbers    prologue, named, view page, count of functions; reference, lowest, highest: over,
 *              under of each
 *   functions  three coefficients, divisor, exact, most or 0, least; a coefficient k is kept as 2
 * k, or as -2 k - 1 when it is negative first      function or 0, host or 0, of each slot of
 * `first` steady     function or 0, of each steady slot
 *
 * READING  Every number is held against its bounds here; that the plan is its recipe's instance is
 * verify.c's to say.
 */
#include <plan/sizes/recipe.h>

#include <internal/error.h>

enum {
    NUMBER_PROLOGUE,
    NUMBER_NAMED,
    NUMBER_VIEW_PAGE,
    NUMBER_FUNCTIONS,
    NUMBER_X, /* reference, lowest, highest: two each */
    NUMBERS = NUMBER_X + 6,
};

#define FUNCTION_NUMBERS (PLEAT__TERMS + 4)

pleat_result pleat__recipe_new(pleat_plan *plan)
{
    uint64_t first = plan->first.slot_count, steady = plan->steady.slot_count;
    pleat__recipe *recipe = pleat__arena_calloc(plan->arena, 1, sizeof *recipe);
    if (recipe == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a recipe");
    recipe->steady = pleat__arena_alloc(plan->arena, (steady + 1) * sizeof *recipe->steady);
    recipe->first = pleat__arena_alloc(plan->arena, (first + 1) * sizeof *recipe->first);
    recipe->hosts = pleat__arena_alloc(plan->arena, (first + 1) * sizeof *recipe->hosts);
    if (recipe->steady == NULL || recipe->first == NULL || recipe->hosts == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a recipe of %llu requests",
                           (unsigned long long)(first + steady));
    for (uint32_t i = 0; i < steady; i++)
        recipe->steady[i] = PLEAT__NO_FUNCTION;
    for (uint32_t i = 0; i < first; i++) {
        recipe->first[i] = PLEAT__NO_FUNCTION;
        recipe->hosts[i] = PLEAT__NO_HOST;
    }
    plan->recipe = recipe;
    return PLEAT_OK;
}

/* --- writing -----------------------------------------------------------------------------------*/

static uint64_t or_zero(uint32_t value)
{
    return value == UINT32_MAX ? 0 : value + 1ull;
}

static void put_x(pleat__fraction x, uint64_t *numbers)
{
    numbers[0] = x.num;
    numbers[1] = x.den;
}

static void give_number(const void *context, uint64_t index, uint64_t *row)
{
    row[0] = ((const uint64_t *)context)[index];
}

static void give_function(const void *context, uint64_t index, uint64_t *row)
{
    const pleat__function *f = &((const pleat__recipe *)context)->functions[index];
    for (int i = 0; i < PLEAT__TERMS; i++)
        row[i] = f->k[i] < 0 ? (uint64_t)(-(f->k[i] + 1)) * 2 + 1 : (uint64_t)f->k[i] * 2;
    row[PLEAT__TERMS] = f->divisor;
    row[PLEAT__TERMS + 1] = f->exact;
    row[PLEAT__TERMS + 2] = f->most == UINT64_MAX ? 0 : f->most + 1;
    row[PLEAT__TERMS + 3] = f->least;
}

static void give_first(const void *context, uint64_t index, uint64_t *row)
{
    const pleat__recipe *recipe = context;
    row[0] = or_zero(recipe->first[index]);
    row[1] = or_zero(recipe->hosts[index]);
}

static void give_steady(const void *context, uint64_t index, uint64_t *row)
{
    row[0] = or_zero(((const pleat__recipe *)context)->steady[index]);
}

void pleat__recipe_put(pleat__pack_writer *writer, const pleat_plan *plan)
{
    const pleat__recipe *recipe = plan->recipe;
    uint64_t numbers[NUMBERS] = {
        [NUMBER_PROLOGUE] = recipe->prologue,
        [NUMBER_NAMED] = recipe->named,
        [NUMBER_VIEW_PAGE] = recipe->view_page,
        [NUMBER_FUNCTIONS] = recipe->function_count,
    };
    put_x(recipe->reference, numbers + NUMBER_X);
    put_x(recipe->lowest, numbers + NUMBER_X + 2);
    put_x(recipe->highest, numbers + NUMBER_X + 4);
    pleat__pack_put_rows(writer, NUMBERS, 1, give_number, numbers);
    pleat__pack_put_rows(writer, recipe->function_count, FUNCTION_NUMBERS, give_function, recipe);
    pleat__pack_put_rows(writer, plan->first.slot_count, 2, give_first, recipe);
    pleat__pack_put_rows(writer, plan->steady.slot_count, 1, give_steady, recipe);
}

/* --- reading -----------------------------------------------------------------------------------*/

typedef struct reader {
    pleat__pack_reader *pack;
    pleat_plan *plan;
    pleat__recipe *recipe;
    uint64_t numbers[NUMBERS];
} reader;

static pleat_result out_of_range(void)
{
    return pleat__fail(PLEAT_E_INPUT, "a number of the row is out of range");
}

static pleat_result take_number(void *context, uint64_t index, const uint64_t *row)
{
    ((reader *)context)->numbers[index] = row[0];
    return PLEAT_OK;
}

/* In lowest terms, and positive: as recipes are written. */
static bool take_x(const uint64_t *numbers, pleat__fraction *out)
{
    return pleat__fraction_make(numbers[0], numbers[1], out) && out->num == numbers[0] &&
           out->den == numbers[1] && out->num != 0;
}

static pleat_result take_function(void *context, uint64_t index, const uint64_t *row)
{
    const reader *r = context;
    pleat__function *f = &r->recipe->functions[index];
    for (int i = 0; i < PLEAT__TERMS; i++)
        f->k[i] = row[i] % 2 == 0 ? (int64_t)(row[i] / 2) : -(int64_t)(row[i] / 2) - 1;
    f->divisor = row[PLEAT__TERMS];
    f->exact = row[PLEAT__TERMS + 1];
    f->most = row[PLEAT__TERMS + 2] == 0 ? UINT64_MAX : row[PLEAT__TERMS + 2] - 1;
    f->least = row[PLEAT__TERMS + 3];
    return f->divisor == 0 || f->divisor > INT64_MAX || f->exact > 1 ? out_of_range() : PLEAT_OK;
}

/* The reverse of or_zero, for an index below `count`. */
static bool take_index(uint64_t value, uint64_t count, uint32_t *out)
{
    *out = value == 0 ? UINT32_MAX : (uint32_t)(value - 1);
    return value <= count;
}

static pleat_result take_first(void *context, uint64_t index, const uint64_t *row)
{
    reader *r = context;
    bool fits = take_index(row[0], r->recipe->function_count, &r->recipe->first[index]) &&
                take_index(row[1], r->plan->steady.slot_count, &r->recipe->hosts[index]);
    return fits ? PLEAT_OK : out_of_range();
}

static pleat_result take_steady(void *context, uint64_t index, const uint64_t *row)
{
    reader *r = context;
    bool fits = take_index(row[0], r->recipe->function_count, &r->recipe->steady[index]);
    return fits ? PLEAT_OK : out_of_range();
}

static pleat_result take_numbers(reader *r)
{
    pleat__recipe *recipe = r->recipe;
    const uint64_t *n = r->numbers;
    PLEAT_TRY(pleat__pack_rows(r->pack, NUMBERS, 1, take_number, r));
    bool fits =
        n[NUMBER_PROLOGUE] <= r->plan->steady.slot_count && n[NUMBER_NAMED] <= 1 &&
        n[NUMBER_VIEW_PAGE] <= PLEAT__PAGES_MOST &&
        n[NUMBER_FUNCTIONS] <= (uint64_t)r->plan->first.slot_count + r->plan->steady.slot_count &&
        n[NUMBER_FUNCTIONS] <= (r->pack->size - r->pack->at) / FUNCTION_NUMBERS &&
        take_x(n + NUMBER_X, &recipe->reference) && take_x(n + NUMBER_X + 2, &recipe->lowest) &&
        take_x(n + NUMBER_X + 4, &recipe->highest);
    if (!fits || !pleat__x_in_range(recipe, recipe->reference))
        return pleat__pack_fail(r->pack, "a number of the recipe is out of range");
    recipe->prologue = (uint32_t)n[NUMBER_PROLOGUE];
    recipe->named = (uint32_t)n[NUMBER_NAMED];
    recipe->view_page = n[NUMBER_VIEW_PAGE];
    recipe->function_count = (uint32_t)n[NUMBER_FUNCTIONS];
    recipe->functions = pleat__arena_calloc(r->plan->arena, recipe->function_count + 1ull,
                                            sizeof *recipe->functions);
    return recipe->functions != NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u functions",
                             recipe->function_count);
}

pleat_result pleat__recipe_take(pleat__pack_reader *pack, pleat_plan *plan)
{
    reader r = {.pack = pack, .plan = plan};
    PLEAT_TRY(pleat__recipe_new(plan));
    r.recipe = plan->recipe;
    PLEAT_TRY(take_numbers(&r));
    PLEAT_TRY(
        pleat__pack_rows(pack, r.recipe->function_count, FUNCTION_NUMBERS, take_function, &r));
    PLEAT_TRY(pleat__pack_rows(pack, plan->first.slot_count, 2, take_first, &r));
    return pleat__pack_rows(pack, plan->steady.slot_count, 1, take_steady, &r);
}
