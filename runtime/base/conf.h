/*
 * conf.h: the runtime's settings: one grammar, one table.
 *
 *   key:value,key:value,...        PLEAT_CONF=small:512k,views:16k
 *
 * Sizes are written as size.h says, numbers of anything else with k, m, g, t or nothing behind
 * them; switches are on or off; texts have no comma. Spaces may stand before a key. Divisions are
 * written as PYTORCH_CUDA_ALLOC_CONF has them: one number for all sizes, or [256:1,512:2,>:4] by
 * the power of two, in MiB, that a size is not below. A key that is not in the table, a value of
 * another type or outside its bounds and a key given twice are errors that name it.
 */
#ifndef PLEAT_RUNTIME_BASE_CONF_H
#define PLEAT_RUNTIME_BASE_CONF_H

#include <pleat/base.h>
#include <stdbool.h>
#include <stddef.h>

#define PLEAT__CONF_TEXT_BYTES 256 /* D481 */
typedef char pleat__conf_text[PLEAT__CONF_TEXT_BYTES];

/* Into how many equal parts the sizes from one power of two to the next are cut: of[i] is for those
 * from 2^i MiB on, of[0] for all smaller ones too. 0 and 1: they are not cut (D477). */
#define PLEAT__DIVIDED_POWERS 16
typedef struct pleat__divisions {
    uint16_t of[PLEAT__DIVIDED_POWERS];
} pleat__divisions;
#define PLEAT__NO_DIVISIONS ((pleat__divisions){{0}})

/* What a setting takes, as far as its type does not say. */
typedef struct pleat__conf_bounds {
    uint64_t least, most; /* of sizes and numbers */
    bool or_zero;         /* 0 is taken besides */
    const char *words;    /* the texts that are taken, " or " between them; NULL: any */
} pleat__conf_bounds;
#define PLEAT__CONF_ANY                 ((pleat__conf_bounds){0, UINT64_MAX, false, NULL})
#define PLEAT__CONF_FROM(least, most)   ((pleat__conf_bounds){least, most, false, NULL})
#define PLEAT__CONF_ZERO_OR_FROM(least) ((pleat__conf_bounds){least, UINT64_MAX, true, NULL})
#define PLEAT__CONF_WORDS(words)        ((pleat__conf_bounds){0, UINT64_MAX, false, words})

/* X(key, type, field type, default, bounds, text) */
#define PLEAT__CONF(X)                                                                             \
    X(small, size, uint64_t, 64u << 10, PLEAT__CONF_ANY,                                           \
      "requests below this many bytes that have no slot lie in a region of their own")             \
    X(views, number, uint64_t, 24u << 10, PLEAT__CONF_ANY,                                         \
      "maps of stitched views, one for each piece of memory, that are kept in case they are "      \
      "wanted again")                                                                              \
    X(learn, switch, bool, true, PLEAT__CONF_ANY,                                                  \
      "follow marked iterations that are alike; off: the heap alone serves")                       \
    X(canary, switch, bool, false, PLEAT__CONF_ANY,                                                \
      "prove that no two live allocations share memory: fills and verifies it on the device")      \
    X(share, switch, bool, false, PLEAT__CONF_ANY,                                                 \
      "memory can be sent to other processes (pleat_share_of)")                                    \
    X(max_split, size, uint64_t, 0, PLEAT__CONF_ZERO_OR_FROM(20u << 20),                           \
      "native: larger blocks are kept whole for requests of about their size; 0: none are")        \
    X(max_round, size, uint64_t, 20u << 20, PLEAT__CONF_FROM(20u << 20, UINT64_MAX),               \
      "native: how much larger than the request such a block may be")                              \
    X(divisions, divisions, pleat__divisions, PLEAT__NO_DIVISIONS, PLEAT__CONF_ANY,                \
      "native and expandable: round requests up to 1/N of a power of two; by size: "               \
      "[256:1,512:2,>:4]; 0: to 512 bytes")                                                        \
    X(collect, number, uint64_t, 0, PLEAT__CONF_FROM(0, 99),                                       \
      "native: percent of the budget or device above which old cached segments go; 0: never")      \
    X(fragment, size, uint64_t, 128u << 20, PLEAT__CONF_ANY,                                       \
      "gmlake: free blocks below this are not stitched")                                           \
    X(stitched, size, uint64_t, UINT64_C(128) << 30, PLEAT__CONF_ANY,                              \
      "gmlake: address space of stitched blocks above which those longest unused go")              \
    X(log, text, pleat__conf_text, "", PLEAT__CONF_ANY,                                            \
      "write the footprint over time into this file (%p: process, %d: device); auto: where pleat " \
      "top looks for it")                                                                          \
    X(log_bytes, size, uint64_t, 4u << 20, PLEAT__CONF_FROM(128u << 10, 64u << 20),                \
      "size of that file, which never grows")                                                      \
    X(log_ms, number, uint64_t, 20, PLEAT__CONF_FROM(1, 3600000u),                                 \
      "milliseconds between its records")                                                          \
    X(keep, switch, bool, false, PLEAT__CONF_ANY,                                                  \
      "leave a plan for the next run of the same job, and follow the one that was left; the "      \
      "PyTorch package has it on")                                                                 \
    X(keep_bytes, size, uint64_t, 256u << 20, PLEAT__CONF_ANY,                                     \
      "what all plans left for next runs may take on disk")                                        \
    X(spill, text, pleat__conf_text, "off", PLEAT__CONF_WORDS("off or host"),                      \
      "host: in the place of out of memory, what is used least often goes to host memory")         \
    X(tenants, text, pleat__conf_text, "", PLEAT__CONF_ANY,                                        \
      "share devices with other processes by a ledger: user: with this user's; or a group's name") \
    X(tenant, text, pleat__conf_text, "", PLEAT__CONF_ANY,                                         \
      "what `pleat tenants` calls it; \"\": the program's name")                                   \
    X(guarantee, size, uint64_t, 0, PLEAT__CONF_ANY,                                               \
      "tenants: bytes of each device that this process can always have")                           \
    X(priority, number, uint64_t, 0, PLEAT__CONF_FROM(0, UINT32_MAX),                              \
      "tenants: what is borrowed goes to the higher number")                                       \
    X(watermark, size, uint64_t, 0, PLEAT__CONF_ANY,                                               \
      "give idle memory back, while the process rests, when the device has less than this free")   \
    X(grace_ms, number, uint64_t, 2000, PLEAT__CONF_FROM(0, 3600000u),                             \
      "tenants: milliseconds that a request waits for what is guaranteed to come back")

typedef struct pleat__conf {
#define PLEAT__CONF_FIELD(key, type, field_type, value, bounds, text) field_type key;
    PLEAT__CONF(PLEAT__CONF_FIELD)
#undef PLEAT__CONF_FIELD
} pleat__conf;

/* Defaults, then what `text` says; NULL is the environment's PLEAT_CONF. PLEAT_E_INVALID, and the
 * error's text begins with "PLEAT_CONF:", or where `text` is given with "conf:". */
PLEAT_NODISCARD pleat_result pleat__conf_read(const char *text, pleat__conf *conf);
/* Whether the process shares devices with others. */
bool pleat__conf_shares(const pleat__conf *conf);
/* PLEAT_E_INVALID: a setting that takes another one besides. `text` as it was read. */
PLEAT_NODISCARD pleat_result pleat__conf_check(const char *text, const pleat__conf *conf);

/* One setting as text, for `pleat conf`; NULL key when `index` is past the last. */
typedef struct pleat__conf_line {
    const char *key;
    const char *text;
    char value[PLEAT__CONF_TEXT_BYTES];
    char takes[64]; /* "1 to 99", "on or off", "a size" */
} pleat__conf_line;
pleat__conf_line pleat__conf_line_of(const pleat__conf *conf, size_t index);

#endif
