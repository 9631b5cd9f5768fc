/*
 * tenants.c: the ledger's rules; tenants_file.c has the file, its checks and its locks.
 *
 * EQUATIONS  With the sums over all other tenants j that are alive and make sense, of a tenant t:
 *              mine_j   = what j wants within its guarantee, or all of its guarantee that it does
 *                         not use while it holds it; and what it wants above, where j has the
 *                         higher priority
 *              room     = device - sum(use_j + other_j) - other_t - use_t
 *              allowed  = min(cap, max(min(guarantee, use_t + room), use_t + room - sum(mine_j)))
 *              debt     = max(0, min(use_t - guarantee, sum(mine_j) - room))
 *
 * CLAIMS     allowed does not depend on use_t. So a tenant first writes what it wants to have, and
 *            then looks whether it is allowed: of two that do so at once at least one sees what the
 *            other one has written (all words are read and written in one order), and takes its own
 *            back. No lock is needed, and nobody waits for one that a process has which is not
 *            running just now (docs/decisions.md, D370).
 */
#include <vmm/tenants/tenants_file.h>

#include <internal/clock.h>
#include <internal/error.h>
#include <internal/process.h>
#include <internal/range.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What was asked for stays its asker's so long (docs/decisions.md, D210). */
#define HOLD_NS UINT64_C(1000000000)

/* So often two may claim the same bytes at once before one of them is refused. Each waits for its
 * own time between (D371). */
#define COLLISIONS 16u
#define APART_NS   2000

struct pleat__tenant {
    pleat__ledger_file *file;
    uint32_t slot;
    uint32_t process; /* that joined: pleat__process_now() */
    uint64_t serial;
    uint64_t device_bytes;
    uint64_t cap;         /* as it was last set by the process */
    pthread_mutex_t lock; /* guards all below, which only this tenant writes into its entry */
    uint64_t use, other, idle, host, want, want_ns;
};

static uint64_t less(uint64_t from, uint64_t bytes)
{
    return from > bytes ? from - bytes : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- entries ---- */

/* The tenant's own fields as it knows them. Under its lock. */
static void write_own(const pleat__tenant *tenant)
{
    pleat__ledger_slot *slot = &tenant->file->map->slots[tenant->slot];
    atomic_store(&slot->use_bytes, tenant->use);
    atomic_store(&slot->other_bytes, tenant->other);
    atomic_store(&slot->idle_bytes, tenant->idle);
    atomic_store(&slot->host_bytes, tenant->host);
    atomic_store(&slot->want_bytes, tenant->want);
    atomic_store(&slot->want_ns, tenant->want_ns);
    atomic_store(&slot->serial, tenant->serial);
}

/* Strikes out who died; how many. */
static uint32_t remove_dead(pleat__ledger_file *file)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < PLEAT__TENANTS_MOST; s++)
        count += pleat__ledger_bury(file, s);
    if (count > 0)
        atomic_fetch_add(&file->map->news, 1);
    return count;
}

/* What one tenant is to another one. */
typedef struct others {
    uint64_t taken;      /* bytes that they have, other memory included */
    uint64_t mine;       /* that are theirs to ask for before the tenant's */
    uint64_t guaranteed; /* all their guarantees */
    bool pressed;        /* one of them asks */
} others;

static void add_other(others *all, const pleat__tenant_entry *entry, uint64_t want_ns,
                      uint32_t priority, uint64_t now)
{
    uint64_t unused = less(entry->guarantee_bytes, entry->use_bytes);
    bool holds = want_ns != 0 && want_ns <= now && now - want_ns < HOLD_NS;
    all->taken += entry->use_bytes + entry->other_bytes;
    all->guaranteed += entry->guarantee_bytes;
    all->mine += holds ? unused : least(entry->want_bytes, unused);
    if (entry->priority > priority)
        all->mine += less(entry->want_bytes, unused);
    all->pressed |= entry->want_bytes != 0;
}

/* Sums of at most 128 entries of at most a device each do not overflow. */
static others sum_others(pleat__ledger_file *file, uint32_t but, uint32_t priority,
                         uint64_t device_bytes)
{
    others all = {0};
    uint64_t now = pleat__now_ns();
    for (uint32_t s = 0; s < PLEAT__TENANTS_MOST; s++) {
        pleat__tenant_entry entry;
        if (s == but || !pleat__ledger_read(file, s, device_bytes, &entry) || entry.damaged)
            continue;
        add_other(&all, &entry, atomic_load(&file->map->slots[s].want_ns), priority, now);
    }
    return all;
}

/* ---- joining ---- */

static void program_name(char name[PLEAT__TENANT_NAME])
{
    FILE *file = fopen("/proc/self/comm", "re");
    if (file == NULL || fgets(name, PLEAT__TENANT_NAME, file) == NULL)
        snprintf(name, PLEAT__TENANT_NAME, "?");
    name[strcspn(name, "\n")] = '\0';
    if (file != NULL)
        fclose(file);
}

/* Letters that a terminal, JSON and Prometheus take as they are. */
static void write_name(pleat__ledger_slot *slot, const char *given)
{
    char name[PLEAT__TENANT_NAME];
    uint64_t words[sizeof name / sizeof(uint64_t)] = {0};
    if (given == NULL || *given == '\0')
        program_name(name);
    else
        snprintf(name, sizeof name, "%s", given);
    for (char *at = name; *at != '\0'; at++)
        if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\')
            *at = '?';
    memcpy(words, name, strlen(name));
    for (size_t w = 0; w < sizeof words / sizeof *words; w++)
        atomic_store(&slot->name[w], words[w]);
}

static pleat_result check_guarantee(uint64_t guarantee, uint64_t guaranteed, uint64_t cap,
                                    uint64_t device_bytes)
{
    if (guarantee > cap)
        return pleat__fail(PLEAT_E_LIMIT, "a guarantee of %.2f MiB above the cap of %.2f MiB",
                           (double)guarantee / (1 << 20), (double)cap / (1 << 20));
    if (guarantee <= device_bytes && guaranteed <= device_bytes - guarantee)
        return PLEAT_OK;
    return pleat__fail(
        PLEAT_E_LIMIT,
        "a guarantee of %.2f MiB does not fit: others are guaranteed %.2f MiB of the "
        "device's %.2f MiB",
        (double)guarantee / (1 << 20), (double)guaranteed / (1 << 20),
        (double)device_bytes / (1 << 20));
}

/* A free entry with its byte locked; with the ledger's lock. */
static pleat_result take_slot(pleat__ledger_file *file, uint32_t *slot)
{
    for (*slot = 0; *slot < PLEAT__TENANTS_MOST; ++*slot)
        if (atomic_load(&file->map->slots[*slot].serial) == 0 && pleat__ledger_live(file, *slot))
            return PLEAT_OK;
    return pleat__fail(PLEAT_E_LIMIT, "%s: all of its %u entries are in use", file->path,
                       PLEAT__TENANTS_MOST);
}

static pleat_result enter(pleat__tenant *tenant, const pleat__tenant_options *options)
{
    pleat__ledger_file *file = tenant->file;
    uint64_t cap = options->cap_bytes == 0 ? tenant->device_bytes : options->cap_bytes;
    cap = least(cap, tenant->device_bytes);
    remove_dead(file);
    others all = sum_others(file, PLEAT__TENANTS_MOST, options->priority, tenant->device_bytes);
    PLEAT_TRY(check_guarantee(options->guarantee_bytes, all.guaranteed, cap, tenant->device_bytes));
    PLEAT_TRY(take_slot(file, &tenant->slot));
    pleat__ledger_slot *slot = &file->map->slots[tenant->slot];
    write_name(slot, options->name);
    atomic_store(&slot->pid, (uint64_t)getpid());
    atomic_store(&slot->uid, geteuid());
    atomic_store(&slot->guarantee_bytes, options->guarantee_bytes);
    atomic_store(&slot->cap_bytes, cap);
    tenant->cap = cap;
    atomic_store(&slot->priority, options->priority);
    atomic_store(&slot->reclaim, 0);
    while (tenant->serial == 0) /* of a file that somebody wrote into it may be any number */
        tenant->serial = atomic_fetch_add(&file->map->serial, 1) + 1;
    write_own(tenant);
    return PLEAT_OK;
}

pleat_result pleat__tenant_join(const pleat__tenant_options *options, pleat__tenant **out)
{
    pleat__tenant *tenant = calloc(1, sizeof *tenant);
    if (tenant == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a tenant");
    pleat_result result = pleat__ledger_open(options, &tenant->file);
    if (result != PLEAT_OK)
        goto no_file;
    tenant->process = pleat__process_now();
    tenant->device_bytes = pleat__ledger_bytes(tenant->file, options->device_bytes);
    pthread_mutex_init(&tenant->lock, NULL);
    result = pleat__ledger_lock(tenant->file);
    if (result != PLEAT_OK)
        goto no_slot;
    result = enter(tenant, options);
    pleat__ledger_unlock(tenant->file);
    if (result != PLEAT_OK)
        goto no_slot;
    *out = tenant;
    return PLEAT_OK;
no_slot:
    pthread_mutex_destroy(&tenant->lock);
    pleat__ledger_close(tenant->file);
no_file:
    free(tenant);
    return pleat__context(result, "tenants");
}

void pleat__tenant_leave(pleat__tenant *tenant)
{
    if (tenant == NULL || tenant->process != pleat__process_now())
        return;
    atomic_store(&tenant->file->map->slots[tenant->slot].serial, 0);
    atomic_fetch_add(&tenant->file->map->news, 1);
    pleat__ledger_die(tenant->file, tenant->slot);
    pleat__ledger_close(tenant->file);
    pthread_mutex_destroy(&tenant->lock);
    free(tenant);
}

void pleat__tenant_raise(pleat__tenant *tenant, uint64_t cap_bytes)
{
    pleat__ledger_slot *slot = &tenant->file->map->slots[tenant->slot];
    uint64_t cap = least(cap_bytes, tenant->device_bytes), was = tenant->cap;
    if (cap > was && atomic_compare_exchange_strong(&slot->cap_bytes, &was, cap))
        tenant->cap = cap;
}

/* ---- claims ---- */

/* The entry makes no sense: nothing is guaranteed any more, and the device is the cap. Without the
 * ledger's lock, which a claim would wait for: who sets terms meanwhile may have to do it again. */
static void heal(const pleat__tenant *tenant)
{
    pleat__ledger_slot *slot = &tenant->file->map->slots[tenant->slot];
    atomic_store(&slot->pid, (uint64_t)getpid());
    atomic_store(&slot->uid, geteuid());
    write_name(slot, NULL);
    atomic_store(&slot->guarantee_bytes, 0);
    atomic_store(&slot->cap_bytes, tenant->device_bytes);
    atomic_store(&slot->priority, 0);
}

/* What others may have set. Under the tenant's lock. */
static pleat__tenant_entry terms_of(const pleat__tenant *tenant)
{
    pleat__tenant_entry entry;
    char name[PLEAT__TENANT_NAME];
    write_own(tenant);
    if (pleat__ledger_read(tenant->file, tenant->slot, tenant->device_bytes, &entry) &&
        !entry.damaged && pleat__ledger_read_name(tenant->file, tenant->slot, name))
        return entry;
    heal(tenant);
    return (pleat__tenant_entry){.cap_bytes = tenant->device_bytes, .use_bytes = tenant->use};
}

static pleat__standing stand(const pleat__tenant *tenant, const pleat__tenant_entry *terms)
{
    others all = sum_others(tenant->file, tenant->slot, terms->priority, tenant->device_bytes);
    uint64_t taken = all.taken + tenant->other;
    uint64_t reach = less(tenant->device_bytes, taken); /* use + room */
    uint64_t room = less(reach, tenant->use);
    uint64_t own = least(terms->guarantee_bytes, reach), borrowed = less(reach, all.mine);
    return (pleat__standing){
        .use_bytes = tenant->use,
        .guarantee_bytes = terms->guarantee_bytes,
        .allowed_bytes = least(terms->cap_bytes, own > borrowed ? own : borrowed),
        .debt_bytes = least(less(tenant->use, terms->guarantee_bytes), less(all.mine, room)),
        .pressed = all.pressed,
        .is_shared = all.taken != 0,
        .reclaim = atomic_load(&tenant->file->map->slots[tenant->slot].reclaim),
    };
}

static pleat_result no_room(const pleat__tenant *tenant, const pleat__tenant_entry *terms,
                            const pleat__standing *standing, uint64_t bytes)
{
    bool capped = tenant->use + bytes > terms->cap_bytes;
    return pleat__fail(PLEAT_E_BUDGET,
                       "tenants: %.2f MiB more than the %.2f MiB it has: %s %.2f MiB",
                       (double)bytes / (1 << 20), (double)tenant->use / (1 << 20),
                       capped ? "its cap is" : "what others have and may ask for leaves it",
                       (double)(capped ? terms->cap_bytes : standing->allowed_bytes) / (1 << 20));
}

static void set_use(pleat__tenant *tenant, uint64_t bytes)
{
    tenant->use = bytes;
    write_own(tenant);
}

/* Writes what it would have, and takes it back where by then that is too much. */
static bool claims(pleat__tenant *tenant, const pleat__tenant_entry *terms, uint64_t bytes)
{
    set_use(tenant, tenant->use + bytes);
    if (tenant->use <= stand(tenant, terms).allowed_bytes)
        return true;
    set_use(tenant, tenant->use - bytes);
    return false;
}

/* Under the tenant's lock. */
static pleat_result claim(pleat__tenant *tenant, uint64_t bytes)
{
    uint64_t then;
    pleat__standing standing;
    pleat__tenant_entry terms = terms_of(tenant);
    if (!pleat__add(tenant->use, bytes, &then))
        return pleat__fail(PLEAT_E_BUDGET, "tenants: %llu bytes more", (unsigned long long)bytes);
    for (uint32_t collisions = 0; collisions < COLLISIONS; collisions++) {
        standing = stand(tenant, &terms);
        if (then > standing.allowed_bytes && remove_dead(tenant->file) > 0)
            standing = stand(tenant, &terms);
        if (then > standing.allowed_bytes)
            break;
        if (claims(tenant, &terms, bytes))
            return PLEAT_OK;
        nanosleep(&(struct timespec){.tv_nsec = APART_NS * (long)(1 + tenant->slot)}, NULL);
    }
    return no_room(tenant, &terms, &standing, bytes);
}

pleat_result pleat__tenant_claim(pleat__tenant *tenant, uint64_t bytes)
{
    pthread_mutex_lock(&tenant->lock);
    pleat_result result = claim(tenant, bytes);
    pthread_mutex_unlock(&tenant->lock);
    return result;
}

/* Under the tenant's lock: its own words alone. */
static void change(pleat__tenant *tenant, bool news)
{
    write_own(tenant);
    if (news)
        atomic_fetch_add(&tenant->file->map->news, 1);
}

void pleat__tenant_unclaim(pleat__tenant *tenant, uint64_t bytes)
{
    pthread_mutex_lock(&tenant->lock);
    tenant->use = less(tenant->use, bytes);
    change(tenant, false);
    pthread_mutex_unlock(&tenant->lock);
}

void pleat__tenant_want(pleat__tenant *tenant, uint64_t bytes)
{
    pthread_mutex_lock(&tenant->lock);
    uint64_t want = least(bytes, tenant->device_bytes);
    bool news = tenant->want != want;
    tenant->want = want;
    if (want != 0)
        tenant->want_ns = pleat__now_ns();
    if (news || want != 0)
        change(tenant, news);
    pthread_mutex_unlock(&tenant->lock);
}

void pleat__tenant_count(pleat__tenant *tenant, uint64_t more)
{
    atomic_fetch_add(&tenant->file->physical, more);
}

uint64_t pleat__tenant_process_bytes(const pleat__tenant *tenant)
{
    return atomic_load(&tenant->file->physical);
}

static bool is_first_of_process(const pleat__tenant *tenant)
{
    uint32_t first = 0;
    while (!atomic_load(&tenant->file->own[first]))
        first++;
    return first == tenant->slot;
}

void pleat__tenant_tell(pleat__tenant *tenant, uint64_t other_bytes, uint64_t idle_bytes,
                        uint64_t host_bytes)
{
    pthread_mutex_lock(&tenant->lock);
    uint64_t other = is_first_of_process(tenant) ? least(other_bytes, tenant->device_bytes) : 0;
    uint64_t idle = least(idle_bytes, tenant->use);
    if (other != tenant->other || idle != tenant->idle || host_bytes != tenant->host) {
        tenant->other = other;
        tenant->idle = idle;
        tenant->host = host_bytes;
        change(tenant, false);
    }
    pthread_mutex_unlock(&tenant->lock);
}

void pleat__tenant_look(pleat__tenant *tenant, pleat__standing *out)
{
    pthread_mutex_lock(&tenant->lock);
    remove_dead(tenant->file);
    (void)pleat__ledger_bytes(tenant->file, tenant->device_bytes); /* where somebody spoilt it */
    pleat__tenant_entry terms = terms_of(tenant);
    *out = stand(tenant, &terms);
    pthread_mutex_unlock(&tenant->lock);
}

uint64_t pleat__tenant_news(const pleat__tenant *tenant)
{
    return atomic_load_explicit(&tenant->file->map->news, memory_order_relaxed);
}

/* ---- for people ---- */

struct pleat__tenants {
    pleat__ledger_file *file;
    uint64_t device_bytes;
};

pleat_result pleat__tenants_open(const char *file, pleat__tenants **out)
{
    pleat__tenants *tenants = calloc(1, sizeof *tenants);
    if (tenants == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a ledger");
    pleat_result result = pleat__ledger_open_named(file, &tenants->file);
    if (result != PLEAT_OK) {
        free(tenants);
        return result;
    }
    tenants->device_bytes = pleat__ledger_bytes(tenants->file, 0);
    *out = tenants;
    return PLEAT_OK;
}

void pleat__tenants_close(pleat__tenants *tenants)
{
    if (tenants != NULL)
        pleat__ledger_close(tenants->file);
    free(tenants);
}

uint64_t pleat__tenants_device_bytes(const pleat__tenants *tenants)
{
    return tenants->device_bytes;
}

pleat_result pleat__tenants_list(pleat__tenants *tenants,
                                 pleat__tenant_entry entries[PLEAT__TENANTS_MOST], uint32_t *count)
{
    *count = 0;
    PLEAT_TRY(pleat__ledger_lock(tenants->file));
    for (uint32_t s = 0; s < PLEAT__TENANTS_MOST; s++) {
        pleat__tenant_entry *entry = &entries[*count];
        if (!pleat__ledger_read(tenants->file, s, tenants->device_bytes, entry))
            continue;
        entry->alive = pleat__ledger_is_alive(tenants->file, s);
        entry->damaged |= !pleat__ledger_read_name(tenants->file, s, entry->name);
        ++*count;
    }
    pleat__ledger_unlock(tenants->file);
    return PLEAT_OK;
}

/* With the ledger's lock; PLEAT__TENANTS_MOST: there is none. */
static uint32_t find(const pleat__tenants *tenants, uint64_t serial, pleat__tenant_entry *entry)
{
    for (uint32_t s = 0; s < PLEAT__TENANTS_MOST; s++)
        if (pleat__ledger_read(tenants->file, s, tenants->device_bytes, entry) &&
            entry->serial == serial)
            return s;
    return PLEAT__TENANTS_MOST;
}

static pleat_result no_tenant(uint64_t serial)
{
    return pleat__fail(PLEAT_E_NOT_FOUND, "there is no tenant %llu", (unsigned long long)serial);
}

static pleat_result set(pleat__tenants *tenants, uint64_t serial, const uint64_t *guarantee,
                        const uint64_t *cap, const uint32_t *priority)
{
    pleat__tenant_entry entry;
    uint32_t at = find(tenants, serial, &entry);
    if (at == PLEAT__TENANTS_MOST)
        return no_tenant(serial);
    /* One that makes no sense has the cap that its tenant heals it to. */
    uint64_t held = entry.damaged ? tenants->device_bytes : entry.cap_bytes;
    uint64_t most = cap != NULL ? least(*cap, tenants->device_bytes) : held;
    uint64_t least_bytes = guarantee != NULL ? *guarantee : entry.guarantee_bytes;
    others all = sum_others(tenants->file, at, 0, tenants->device_bytes);
    PLEAT_TRY(check_guarantee(least_bytes, all.guaranteed, most, tenants->device_bytes));
    pleat__ledger_slot *slot = &tenants->file->map->slots[at];
    atomic_store(&slot->guarantee_bytes, least_bytes);
    atomic_store(&slot->cap_bytes, most);
    if (priority != NULL)
        atomic_store(&slot->priority, *priority);
    return PLEAT_OK;
}

pleat_result pleat__tenants_set(pleat__tenants *tenants, uint64_t serial,
                                const uint64_t *guarantee_bytes, const uint64_t *cap_bytes,
                                const uint32_t *priority)
{
    PLEAT_TRY(pleat__ledger_lock(tenants->file));
    remove_dead(tenants->file);
    pleat_result result = set(tenants, serial, guarantee_bytes, cap_bytes, priority);
    atomic_fetch_add(&tenants->file->map->news, 1);
    pleat__ledger_unlock(tenants->file);
    return result;
}

pleat_result pleat__tenants_reclaim(pleat__tenants *tenants, uint64_t serial)
{
    pleat__tenant_entry entry;
    PLEAT_TRY(pleat__ledger_lock(tenants->file));
    uint32_t at = find(tenants, serial, &entry);
    if (at != PLEAT__TENANTS_MOST) {
        atomic_fetch_add(&tenants->file->map->slots[at].reclaim, 1);
        atomic_fetch_add(&tenants->file->map->news, 1);
    }
    pleat__ledger_unlock(tenants->file);
    return at != PLEAT__TENANTS_MOST ? PLEAT_OK : no_tenant(serial);
}

pleat_result pleat__tenants_remove_dead(pleat__tenants *tenants, uint32_t *count)
{
    PLEAT_TRY(pleat__ledger_lock(tenants->file));
    *count = remove_dead(tenants->file);
    pleat__ledger_unlock(tenants->file);
    return PLEAT_OK;
}
