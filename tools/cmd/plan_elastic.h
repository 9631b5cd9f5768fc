/*
 * plan_elastic.h: what `pleat plan` says of a plan with a recipe: what x it was fitted from, what
 * another x would need, and the largest x that fits.
 */
#ifndef PLEAT_TOOLS_CMD_PLAN_ELASTIC_H
#define PLEAT_TOOLS_CMD_PLAN_ELASTIC_H

#include <tools/json.h>

#include <plan/sizes/planner.h>

typedef struct elastic_question {
    const char *at; /* an x as text; NULL: not asked */
    uint64_t fit;   /* bytes; 0: not asked */
} elastic_question;

/* The recipe, in an object "elastic" and as text; `traces` are the files it was fitted from. */
void elastic_json(json_writer *json, const pleat_plan *plan, const pleat__elastic_report *report,
                  const char *const *traces, uint32_t count);
void elastic_text(const pleat_plan *plan, const pleat__elastic_report *report,
                  const char *const *traces, uint32_t count);

/* Of a plan that was read: the range of its x, and what some of them need. */
void elastic_summary(const pleat_plan *plan);

/* Answers on standard output; `path` is what the plan is called, `json` NULL for text, else in an
 * open object. The exit code. */
int elastic_answer(const char *path, const pleat_plan *plan, const elastic_question *question,
                   json_writer *json);

#endif
